"""Data sets that are generated: Long Range Arena's ListOps and Pathfinder, and pairs of passages from any texts."""

from __future__ import annotations

import os
import shutil
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import ExitStack, suppress
from functools import partial
from itertools import chain, islice
from pathlib import Path
from typing import Any

import numpy as np

from lagwise.cache import cached_folder, default_cache
from lagwise.data.splits import SPLITS, split_sizes
from lagwise.data.tokens import open_source
from lagwise.extras import require
from lagwise.files import PARTIAL, lock
from lagwise.progress import progress_bar
from lagwise.tables import known
from lagwise_papers.data import listops, pathfinder
from lagwise_papers.data.published import ARENA

_ROWS = {"train": 96_000, "valid": 2_000, "test": 2_000}  # default sizes for ListOps
_IMAGES = 200_000
_PAIRS, _PASSAGE_CHARACTERS = 20_000, 4_000  # pairs of passages, and characters in each passage
RETRIEVAL = "lra-retrieval"
_MAX_PROCESSES = 61  # the most that Windows can wait for
_FORMAT = 3  # raise when the same seed gives other data


def generated_source(name: str, *, progress: bool = True) -> Path | None:
    """Return the folder in the cache for a name such as ``lra-listops`` or ``lra-pathfinder:20000`` (rows, or images),
    generated if missing. None for a name of another kind. ValueError for an invalid number."""
    kind, _, count = name.partition(":")
    if kind not in GENERATED:
        return None
    if count and not (count.isdecimal() and 10 <= int(count) <= 10**7):
        raise ValueError(f"{name!r}: expected a number of rows from 10 to 10000000 after the colon")
    rows = int(count) if count else None
    folder = default_cache() / "generated" / f"{kind}-{rows or 'all'}-{_FORMAT}"
    cached_folder(folder, lambda unfinished: GENERATED[kind](unfinished, rows=rows, seed=0, progress=progress))
    return folder


def write_listops(out: Path, *, rows: int | None, seed: int, progress: bool) -> dict[str, Any]:
    """Write ListOps as Long Range Arena's files, ``basic_train.tsv``, ``basic_val.tsv`` and ``basic_test.tsv``.

    rows: of the training file (96,000); the others have a 48th as many. Row i of a file depends only on the seed, the
    file and i, and the rows of one file are in no other, of whatever size.
    """
    sizes = _ROWS if rows is None else {"train": rows, "valid": max(2, rows // 48), "test": max(2, rows // 48)}
    names = dict(zip(SPLITS, ARENA["listops"].file_sets[0], strict=True))
    blocks = _blocks(listops_block, seed, _row_ranges(sizes, _ROWS), listops.BLOCK)
    with progress_bar(desc="generating ListOps", total=sum(sizes.values()), unit="row", show=progress) as bar:
        lines = (line for block in blocks for line in block)
        for split in SPLITS:
            with open(out / f"{names[split]}.tsv", "w", encoding="utf-8") as file:
                file.write("Source\tTarget\n")
                for line in islice(lines, sizes[split]):
                    file.write(line)
                    bar.update()
    return {"rows": sizes, "seed": seed}


def write_pathfinder(out: Path, *, rows: int | None, seed: int, progress: bool, side: int = 32) -> dict[str, Any]:
    """Write Pathfinder as Long Range Arena's folders: ``imgs/K/sample_N.png``, and ``metadata/K.npy``, text in which
    the line of an image holds its folder, its file, its number and its label.

    rows: images (200,000), in the order of their splits (`split_sizes`). Image i of a split depends only
    on the seed, the split and i, and the images of one split are in no other, of whatever size.
    """
    require("vision", "Pathfinder", "PIL")  # before processes start to draw
    count = rows or _IMAGES
    ranges = _row_ranges(split_sizes(count), split_sizes(_IMAGES))
    folder = out / "curv_contour_length_14"
    (folder / "metadata").mkdir(parents=True)
    blocks = _blocks(pathfinder_block, seed, ranges, pathfinder.BLOCK, side)
    with progress_bar(desc="drawing Pathfinder", total=count, unit="image", show=progress) as bar:
        for number, block in enumerate(blocks):
            subfolder = folder / "imgs" / str(number)
            subfolder.mkdir(parents=True)
            lines = []
            for i, (image, label) in enumerate(block):
                (subfolder / f"sample_{i}.png").write_bytes(image)
                lines.append(f"imgs/{number} sample_{i}.png {i} {label}\n")
                bar.update()
            (folder / "metadata" / f"{number}.npy").write_text("".join(lines), encoding="utf-8")
    return {"images": count, "side": side, "seed": seed}


def write_passages(out: Path, texts: Path, *, rows: int | None, seed: int, progress: bool) -> dict[str, Any]:
    """Write pairs of passages, from the same text or not, in the layout of Long Range Arena's retrieval task.

    Args:
        texts: a folder of texts, each a file, in splits by the words train, valid and test in their names, or by a hash
            of the names; a text of one split is in no pair of another.
        rows: pairs for training (20,000); the others have a tenth as many.

    Passages are of 4,000 characters, half the pairs are from one text, and those do not overlap.

    ValueError for fewer than two texts of 8,000 characters in a split, and for a text in more than one.
    """
    source = open_source(str(texts))
    files = list(chain(*source.files.values()))
    if len(set(files)) < len(files):
        raise ValueError(
            f"a text of {str(texts)!r} would be in more than one split; give three files or more, or name files or "
            "folders train, valid and test"
        )
    sizes = {"train": rows or _PAIRS, "valid": max(2, (rows or _PAIRS) // 10), "test": max(2, (rows or _PAIRS) // 10)}
    names = dict(zip(SPLITS, ARENA["aan"].file_sets[0], strict=True))
    books = {}
    for split in SPLITS:
        cleaned = (" ".join(text.split()) for text in source.documents(split))
        books[split] = [text for text in cleaned if len(text) >= 2 * _PASSAGE_CHARACTERS]
        if len(books[split]) < 2:
            raise ValueError(
                f"{split} of {str(texts)!r} has {len(books[split])} text(s) of {2 * _PASSAGE_CHARACTERS} characters; "
                "two are needed: give more, or name files or folders train, valid and test"
            )
    with progress_bar(desc="drawing passages", total=sum(sizes.values()), unit="pair", show=progress) as bar:
        for split_index, split in enumerate(SPLITS):
            with open(out / f"{names[split]}.tsv", "w", encoding="utf-8") as file:
                for i in range(sizes[split]):
                    file.write(_pair(books[split], np.random.default_rng((seed, split_index, i)), i))
                    bar.update()
    return {"pairs": sizes, "seed": seed}


def _pair(books: list[str], random: np.random.Generator, number: int) -> str:
    """Write a line of two passages; even numbers take both from one book."""
    same = 1 - number % 2
    one, other = random.choice(len(books), 2, replace=False)
    if same:
        room = len(books[one]) - 2 * _PASSAGE_CHARACTERS  # characters in neither passage
        cuts = np.sort(random.integers(0, room + 1, 2))
        starts = [(one, cuts[0]), (one, cuts[1] + _PASSAGE_CHARACTERS)]
        starts = [starts[i] for i in random.permutation(2)]
    else:
        starts = [(b, random.integers(0, len(books[b]) - _PASSAGE_CHARACTERS + 1)) for b in (one, other)]
    texts = [books[b][start : start + _PASSAGE_CHARACTERS] for b, start in starts]
    ids = [f"{b}-{start}" for b, start in starts]
    return "\t".join([str(same), *ids, *texts]) + "\n"


GENERATED: dict[str, Callable[..., dict[str, Any]]] = {
    "lra-listops": write_listops,
    "lra-pathfinder": write_pathfinder,
    "lra-path-x": partial(write_pathfinder, side=128),
}


def generate(name: str, out: Path, *, rows: int | None, seed: int, texts: Path | None, progress: bool = True) -> None:
    """Write a generated data set into a folder that does not exist yet, complete or not at all.

    name: of `GENERATED`, or ``lra-retrieval``, which is made of ``texts``. ValueError, FileExistsError, and
    BlockingIOError while another process writes the folder, are raised before anything is written. What a killed
    process has left is removed.
    """
    known(name, (*GENERATED, RETRIEVAL), "data set")
    if (texts is None) == (name == RETRIEVAL):
        raise ValueError("lra-retrieval needs a folder of texts (`texts`); the others take none")
    if rows is not None and rows < 10:
        raise ValueError(f"`rows` must be at least 10, got {rows}")
    if out.exists():
        raise _exists(out)
    write = GENERATED.get(name)
    if write is None:
        assert texts is not None
        write = partial(write_passages, texts=texts)
    unfinished = out.with_name(f"{PARTIAL}-{out.name}")
    lock_file = out.with_name(f"{unfinished.name}.lock")
    out.parent.mkdir(parents=True, exist_ok=True)
    with ExitStack() as stack:
        try:
            stack.enter_context(lock(lock_file))
        except BlockingIOError as error:
            raise BlockingIOError(f"another process is writing {str(out)!r}; wait until it ends") from error
        stack.callback(_remove, lock_file)
        stack.callback(shutil.rmtree, unfinished, ignore_errors=True)
        if out.exists():  # written by another process before this one had the lock
            raise _exists(out)
        shutil.rmtree(unfinished, ignore_errors=True)
        unfinished.mkdir()
        write(unfinished, rows=rows, seed=seed, progress=progress)
        unfinished.rename(out)


def _remove(lock: Path) -> None:
    with suppress(PermissionError):  # Windows removes no file that is open
        lock.unlink()


def _exists(out: Path) -> FileExistsError:
    return FileExistsError(f"{str(out)!r} exists already; choose another folder with `out`, or remove it")


def _row_ranges(sizes: Mapping[str, int], full: Mapping[str, int]) -> list[range]:
    """Return the ranges of the rows of each split in the endless sequence of a seed. In a set of full size one split
    follows the other; a smaller set has the first rows of each, and the further rows of a larger one begin far behind.
    """
    ranges, start = [], 0
    for number, (size, full_size) in enumerate(zip(sizes.values(), full.values(), strict=True), 1):
        further = number << 40
        ranges += [range(start, start + min(size, full_size)), range(further, further + max(0, size - full_size))]
        start += full_size
    return ranges


def _blocks(
    make: Callable[..., Any], seed: int, ranges: Iterable[range], size: int, *options: Any
) -> Iterator[Sequence[Any]]:
    """Yield the rows of some ranges, in order, by blocks: ``make(seed, block, *options)`` makes a block of ``size``
    rows. Computed by one process per core."""
    slices = [
        (block, slice(max(0, rows.start - block * size), rows.stop - block * size))
        for rows in filter(None, ranges)
        for block in range(rows.start // size, -(-rows.stop // size))
    ]
    processes = min(len(slices), os.cpu_count() or 1, _MAX_PROCESSES)
    if processes == 1:
        yield from (make(seed, block, *options)[rows] for block, rows in slices)
        return
    with ProcessPoolExecutor(processes) as pool:
        waiting: deque[tuple[Any, slice]] = deque()  # bounded, so that few blocks are in memory at a time
        for block, rows in slices:
            waiting.append((pool.submit(make, seed, block, *options), rows))
            if len(waiting) > 2 * processes:
                result, rows = waiting.popleft()
                yield result.result()[rows]
        yield from (result.result()[rows] for result, rows in waiting)


def listops_block(seed: int, block: int) -> list[str]:
    """Make the lines of a block of expressions."""
    expressions = listops.expressions(seed, block)
    return [f"{text}\t{answer}\n" for text, answer in zip(listops.texts(expressions), expressions.answers, strict=True)]


def pathfinder_block(seed: int, block: int, side: int) -> list[tuple[bytes, int]]:
    """Make the PNG files and the labels of a block of images."""
    images, labels = pathfinder.images(seed, block, side=side)
    return [(pathfinder.encoded(image), int(label)) for image, label in zip(images, labels, strict=True)]
