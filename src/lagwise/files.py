"""Writing files completely or not at all, and into a folder by one process at a time."""

from __future__ import annotations

import errno
import hashlib
import json
import os
import shutil
import tempfile
import warnings
from collections.abc import Collection, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

LOCK = ".lock"
PARTIAL = ".saving"  # prefix of unfinished files and folders; the next process removes them
RECIPE_FILE = "recipe.yaml"  # in a run's folder
RUN_FILE = "run.json"  # in a run's folder: the key of its data and the versions of packages
TOKENIZER = "tokenizer"  # folder of a run, for its copy of the tokenizer
_RUN_MARKERS = ({LOCK}, {RECIPE_FILE, RUN_FILE}, {"config.json", "model.safetensors"})


@contextmanager
def lock(path: Path, *, wait: bool = False) -> Iterator[None]:
    """Hold a lock, which the system releases if the process dies. BlockingIOError if another process holds it, unless
    ``wait`` is true."""
    from filelock import FileLock, Timeout

    holder = FileLock(path)
    try:
        holder.acquire(timeout=0)
    except Timeout as error:
        if not wait:
            raise BlockingIOError(f"{path} is locked by another process") from error
        warnings.warn(f"waiting for another process, which holds {path}", stacklevel=3)
        holder.acquire()
    try:
        yield
    finally:
        holder.release()


@contextmanager
def locked(folder: Path, doing: str) -> Iterator[None]:
    """Hold the lock of a folder, created if necessary, and remove what killed processes left unfinished in it.

    doing: what holders of the lock do, for the message. BlockingIOError if another process holds it.
    """
    folder.mkdir(parents=True, exist_ok=True)
    with ExitStack() as stack:
        try:
            stack.enter_context(lock(folder / LOCK))
        except BlockingIOError as error:
            raise BlockingIOError(f"another process is {doing} in {str(folder)!r}; wait until it ends") from error
        remove_partial(folder)
        yield


def remove_partial(folder: Path) -> None:
    """Remove unfinished files and folders."""
    for path in folder.glob(f"{PARTIAL}*"):
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path, ignore_errors=True)
        else:
            path.unlink(missing_ok=True)


def is_unused(folder: Path, *ignored: str) -> bool:
    """Whether a folder is absent, or empty except for a lock, unfinished files, and the ``ignored`` names."""
    if not folder.is_dir():
        return not folder.exists()
    return all(path.name in (LOCK, *ignored) or path.name.startswith(PARTIAL) for path in folder.iterdir())


def check_unused(out: Path) -> None:
    """Raise FileExistsError if a run's folder is in use, and ValueError if it cannot be created."""
    check_writable(out, "out")
    # A process that dies before writing the recipe leaves only these.
    if not is_unused(out, RUN_FILE, TOKENIZER):
        if (out / "config.json").is_file():
            raise FileExistsError(
                f"{str(out)!r} holds a finished run: choose another `out`; to go on from its weights, add "
                f"`init_from={out}`"
            )
        raise FileExistsError(
            f"{str(out)!r} is not empty: resume it with `resume`, or choose another `out`; `resume` auto begins or "
            "resumes a run, as needed"
        )


def is_run(names: Collection[str]) -> bool:
    """Whether the files of a folder, by their names, are those of a run or of a saved model, which are never data.

    >>> is_run(["recipe.yaml", "run.json", "metrics.jsonl"]), is_run(["recipe.yaml", "soups.txt"])
    (True, False)
    """
    return any(marks <= {*names} for marks in _RUN_MARKERS)


def check_writable(path: Path, argument: str) -> None:
    """Raise ValueError, naming the argument that gives the path, if no file or folder can be created there. One is
    created to find out, because permissions say nothing about read-only file systems."""
    above = next(folder for folder in (path, *path.absolute().parents) if folder.exists())
    try:
        with _partial(above):
            pass
    except OSError as error:
        raise ValueError(
            f"`{argument}` cannot be {str(path)!r}: {str(above)!r} is not a folder that can be written to "
            f"({error.strerror})"
        ) from error


def follow_umask(folder: Path) -> None:
    """Give the weights in a folder the mode of any new file there: safetensors lets only their owner read them."""
    with tempfile.TemporaryDirectory(dir=folder, prefix=f"{PARTIAL}-") as partial:
        other = Path(partial, "other")
        other.touch()
        for file in folder.glob("*.safetensors"):
            shutil.copymode(other, file)


def write_whole(path: Path, text: str) -> None:
    """Write a text file that appears under its name only when complete."""
    with saved_whole(path.parent, path.name) as partial:
        (partial / path.name).write_text(text, encoding="utf-8")


def write_json(path: Path, value: Mapping[str, Any]) -> None:
    """Write a mapping as JSON, in lines for people; the file appears under its name only when complete."""
    write_whole(path, json.dumps(value, indent=1) + "\n")


@contextmanager
def saved_whole(folder: Path, noun: str, *, last: str = "") -> Iterator[Path]:
    """Yield a hidden folder to write to. At the end it becomes ``folder`` at once, or its files are moved there, the
    file named ``last`` last. If writing fails, ``folder`` keeps the files it had. An OSError says what could not be
    saved."""
    created = not folder.exists()
    above = folder.parent if created else folder
    try:
        above.mkdir(parents=True, exist_ok=True)
        with _partial(above, folder.parent) as partial:
            yield partial
            follow_umask(partial)
            if created:
                os.replace(partial, folder)
                return
            if last:
                (folder / last).unlink(missing_ok=True)  # the folder is incomplete without it, and meanwhile
            for file in sorted(partial.iterdir(), key=lambda file: file.name == last):
                if file.is_dir() and (folder / file.name).is_dir():  # only an empty folder can be replaced
                    shutil.rmtree(folder / file.name)
                os.replace(file, folder / file.name)
    except Exception as error:  # safetensors, tokenizers, torch and the system raise different types
        raise OSError(f"cannot save {noun} in {str(folder)!r}: {one_line(error)}") from error


@contextmanager
def _partial(folder: Path, *others: Path) -> Iterator[Path]:
    """Make a hidden folder in another, and remove those that killed processes have left in any of these: a running
    process holds the lock of its own. What cannot be removed at the end is left to the next process."""
    for left in {left for each in (folder, *others) for left in each.glob(f"{PARTIAL}-*")}:
        with suppress(OSError), lock(left / LOCK):
            shutil.rmtree(left, ignore_errors=True)
    temporary = tempfile.TemporaryDirectory(dir=folder, prefix=f"{PARTIAL}-", ignore_cleanup_errors=True)
    with temporary as hidden, lock(Path(hidden, LOCK)):
        partial = Path(hidden, "whole")
        partial.mkdir()  # with the mode of any new folder
        yield partial


def is_full_disk(error: BaseException) -> bool:
    """Whether an error means that the disk, or the user's quota, is full; libraries in Rust do not raise OSError."""
    codes = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
    return getattr(error, "errno", None) in codes or any(os.strerror(code) in str(error) for code in codes)


def of_library(error: Exception) -> bool:
    """Whether a library in Rust reports an error of the system, with a type of its own."""
    return not isinstance(error, OSError | ValueError) and "(os error " in str(error)


def file_digest(path: Path) -> bytes:
    """Compute the SHA-256 hash of a file's content without loading it into memory."""
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").digest()


def read_json(path: Path) -> dict[str, Any]:
    """Read a JSON object from a file. FileNotFoundError if there is none; ValueError if it holds anything else."""
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{str(path)!r} is damaged ({one_line(error)})") from error
    if not isinstance(value, dict):
        raise ValueError(f"{str(path)!r} is damaged (a JSON object is expected, not {type(value).__name__})")
    return value


def expanded(path: str | Path) -> Path:
    """Replace ``~`` in a path. ValueError if its user has no home folder."""
    try:
        return Path(path).expanduser()
    except RuntimeError as error:
        raise ValueError(f"{str(path)!r}: {error}") from error


def beside(folder: Path, ending: str) -> Path:
    """Add an ending to a folder's path, which is made absolute only if it has no name, as ``.`` and ``..``."""
    return Path(f"{folder if folder.name not in ('', '..') else folder.resolve()}{ending}")


def one_line(error: BaseException, max: int = 200) -> str:
    """Write an error's message on one line, shortened; its type if the message is empty."""
    text = " ".join(str(error).split()) or type(error).__name__
    return text if len(text) <= max else text[: max - 3] + "..."
