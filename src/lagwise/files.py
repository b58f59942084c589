"""Files that are written whole or not at all, and folders that one process at a time writes to."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

LOCK = ".lock"
PARTIAL = ".saving"  # how the names of unfinished files and folders begin; they are removed by whoever comes next


@contextmanager
def locked(folder: Path, doing: str) -> Iterator[None]:
    """Hold the folder's lock, which the system releases if the process dies, and clear what killed processes left.

    doing: for the message, what holders of the lock do. BlockingIOError if another process holds it.
    """
    from filelock import FileLock, Timeout

    folder.mkdir(parents=True, exist_ok=True)
    lock = FileLock(folder / LOCK, timeout=0)
    try:
        lock.acquire()
    except Timeout as error:
        raise BlockingIOError(f"another process is {doing} in {str(folder)!r}; wait until it ends") from error
    try:
        remove_partial(folder)
        yield
    finally:
        lock.release()


def remove_partial(folder: Path) -> None:
    """Remove unfinished files and folders."""
    for path in folder.glob(f"{PARTIAL}*"):
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path, ignore_errors=True)
        else:
            path.unlink(missing_ok=True)


def is_unused(folder: Path, *ours: str) -> bool:
    """Whether a folder is absent, or empty but for a lock, unfinished files, and the names given."""
    if not folder.is_dir():
        return not folder.exists()
    return all(path.name in (LOCK, *ours) or path.name.startswith(PARTIAL) for path in folder.iterdir())


def write_whole(path: Path, text: str) -> None:
    """Write a text file that appears under its name when complete."""
    with saved_whole(path.parent, path.name) as partial:
        (partial / path.name).write_text(text)


@contextmanager
def saved_whole(folder: Path, what: str, *, last: str = "") -> Iterator[Path]:
    """A hidden folder to write to; at the end its files are moved into ``folder``, the one named ``last`` last.

    If writing fails, ``folder`` keeps the files it had, or is removed again if it was made here. OSError says what
    could not be saved.
    """
    made = not folder.exists()
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=folder, prefix=f"{PARTIAL}-") as partial:
            yield Path(partial)
            if last:
                (folder / last).unlink(missing_ok=True)  # without it the folder is incomplete, in the meantime too
            for file in sorted(Path(partial).iterdir(), key=lambda file: file.name == last):
                os.replace(file, folder / file.name)
    except Exception as error:  # safetensors, tokenizers, torch and the system each raise a type of their own
        if made and folder.is_dir() and not any(folder.iterdir()):
            folder.rmdir()
        raise OSError(f"cannot save {what} in {str(folder)!r}: {first_line(error)}") from error


def first_line(error: BaseException) -> str:
    """The first line of an error's message, or its type if it has none."""
    return next(iter(str(error).splitlines()), "") or type(error).__name__
