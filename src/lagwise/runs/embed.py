"""The vectors of the texts in files, as a table that an interrupted command goes on with."""

from __future__ import annotations

import hashlib
import json
import shutil
import time
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from pyarrow import parquet

from lagwise.data.tokens import named_documents, text_files
from lagwise.files import beside, check_writable, locked, saved_whole
from lagwise.models.generation import encoded_chunks
from lagwise.models.loading import default_device, load_model
from lagwise.progress import progress_bar
from lagwise.runs.vectors import Vector, hidden_model, vectors
from lagwise.text import split_text

_SECONDS, _ROWS = 30.0, 1 << 13  # of work and of vectors that a process that is killed may lose
_CHUNK_CHARACTERS = 1 << 16  # characters of a text, at least, between two steps of the progress bar
_ABOUT = b"lagwise"  # in a table's metadata: of what its vectors are


def embed_run(
    run: Path,
    sources: Sequence[str],
    out: Path,
    *,
    pooling: str = "mean",
    window: int | None = None,
    stride: int | None = None,
    progress: bool = True,
) -> dict[str, int]:
    """Write the vectors (`lagwise.embed`) of texts, or of their windows (`vectors`), to a .parquet file.

    Its columns are ``file``, ``document``, the number of the text in its file from 1, ``id``, which the records of a
    file may have, ``start``, the number of a window's first token from 0, ``tokens`` and ``vector``, as float32. Rows
    are in the order of the texts; those without any character have none.

    Vectors are saved in the folder ``OUT.parts`` as they are made. After an interruption the same call goes on after
    the last that was saved; a document without windows is begun again.

    sources: Files, folders, and ``-`` for standard input, as `text_files` reads them.

    Returns the numbers of ``vectors``, of ``earlier`` ones among them, and of ``empty`` texts. ValueError for files
    that are not text, and as `vectors`; all files are read before the first vector is made. FileExistsError if ``out``,
    or its folder of parts, is of other texts or options.
    """
    if out.suffix != ".parquet" or out.is_dir():
        raise ValueError(f"`out` must be a .parquet file, got {str(out)!r}")
    check_writable(out.parent, "out")
    folder = beside(out, ".parts")
    ours = {out.absolute(), folder.absolute()}
    files = {path: name for path, name in text_files(sources).items() if not ours & {*(path.absolute() / "x").parents}}
    model, tokenizer = load_model(run, device=default_device())
    hidden_model(model, window, stride)
    assert tokenizer is not None  # the model reads tokens
    options: dict[str, Any] = {"pooling": pooling, "window": window, "stride": stride}
    written = [out] if out.exists() else sorted(folder.glob("*.parquet"))
    done, start = _about(written[-1]).get("after", (-1, 0)) if written else (-1, 0)
    first = done + (window is None)  # text to go on with
    with open(run / "model.safetensors", "rb") as weights:
        digest = hashlib.file_digest(weights, "sha256")
    digest.update(json.dumps(options).encode())
    total = begun = empty = 0
    for (number, *names), parts in _texts(files):
        digest.update(json.dumps(names).encode())
        size = 0
        for part in parts:
            digest.update(data := part.encode())
            size += len(data)
        total, begun, empty = total + size, begun + (number < first) * size, empty + (not size)
    if not total:
        raise ValueError(f"there is no text in {', '.join(map(str, sources))}")
    key = digest.hexdigest()
    if written and _about(written[-1]).get("key") != key:
        raise FileExistsError(
            f"{str(out if out.exists() else folder)!r} has vectors of other texts, or by another model or options; "
            "remove it, or choose another `out`"
        )
    earlier = sum(parquet.read_metadata(path).num_rows for path in written)
    if not out.exists():
        with (
            locked(folder, "making vectors"),
            progress_bar(show=progress, desc="Embedding", total=total, initial=begun, unit="B", unit_scale=True) as bar,
        ):

            def ids(parts: Iterable[str]) -> Iterator[np.ndarray]:
                for chunk in split_text(parts, _CHUNK_CHARACTERS):
                    yield from encoded_chunks(tokenizer, chunk)
                    bar.update(len(chunk.encode()))

            left = ((names, ids(parts)) for names, parts in _texts(files) if names[0] >= first)
            _save(vectors(model, left, begin=start + 1 if written else 0, **options), folder, len(written), key)
            if not (written := sorted(folder.glob("*.parquet"))):
                raise ValueError(f"no text in {', '.join(map(str, sources))} has a token")
            with (
                saved_whole(out.parent, out.name) as partial,
                parquet.ParquetWriter(partial / out.name, parquet.read_schema(written[-1])) as writer,
            ):
                for part in written:
                    writer.write_table(parquet.read_table(part).cast(writer.schema))
        shutil.rmtree(folder, ignore_errors=True)
    return {"vectors": parquet.read_metadata(out).num_rows, "earlier": earlier, "empty": empty}


def _texts(files: dict[Path, str]) -> Iterator[tuple[tuple[int, str, int, str | None], Iterable[str]]]:
    """The number of each text, its file, its number there and its ``id``; and the text in parts."""
    number = 0
    for path, name in files.items():
        for index, (own, parts) in enumerate(named_documents(path), 1):
            yield (number, name, index, own), parts
            number += 1


def _save(stream: Iterable[Vector], folder: Path, count: int, key: str) -> None:
    """Write vectors into a folder that has ``count`` parts, some at a time, and before an error."""
    batch, saved = list[Vector](), time.monotonic()

    def save() -> None:
        nonlocal batch, saved, count
        if batch:
            about = {"key": key, "after": (batch[-1].document[0], batch[-1].start)}
            with saved_whole(folder, name := f"{count:08}.parquet") as partial:
                parquet.write_table(_table(batch).replace_schema_metadata({_ABOUT: json.dumps(about)}), partial / name)
            batch, saved, count = [], time.monotonic(), count + 1

    try:
        for vector in stream:
            batch.append(vector)
            if len(batch) >= _ROWS or time.monotonic() - saved > _SECONDS:
                save()
    finally:  # after an error and Ctrl-C too
        save()


def _table(batch: Sequence[Vector]) -> pa.Table:
    vector = pa.list_(pa.float32(), len(batch[0].values))
    fields = {"file": pa.string(), "document": pa.int64(), "id": pa.string()}
    fields |= {"start": pa.int64(), "tokens": pa.int64(), "vector": vector}
    rows = [(*each.document[1:], each.start, each.tokens, each.values.numpy()) for each in batch]
    return pa.table([*zip(*rows, strict=True)], schema=pa.schema(fields))


def _about(path: Path) -> dict[str, Any]:
    """The metadata of a table of vectors; empty for another file."""
    try:
        return json.loads((parquet.read_schema(path).metadata or {}).get(_ABOUT, b"{}"))
    except pa.ArrowException:
        return {}
