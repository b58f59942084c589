"""The cache of data that can be recreated: token files, timings, compiled kernels."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import stat
import warnings
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

from lagwise.files import PARTIAL, is_full_disk, lock, of_library, one_line

_META = "meta.json"


def default_cache() -> Path:
    """Return the cache folder: ``$LAGWISE_CACHE``, or ``~/.cache/lagwise`` if that is unset or empty. A missing folder
    is created for the user only.

    ValueError if the user has no home folder, or ``~name`` in the variable names an unknown user.
    """
    folder = Path(os.environ.get("LAGWISE_CACHE") or "~/.cache/lagwise")
    try:
        folder = folder.expanduser()
    except RuntimeError as error:
        raise ValueError(
            f"the cache {str(folder)!r} cannot be found ({error}); set LAGWISE_CACHE to a folder"
        ) from error
    make_private(folder)
    return folder


def make_private(folder: Path) -> None:
    """Create a folder and its missing parents with access for the user only, whatever the umask."""
    for each in (*reversed(folder.parents), folder):
        if not each.is_dir():
            each.mkdir(mode=0o700, exist_ok=True)


def require_private(path: Path, root: Path) -> None:
    """Raise PermissionError unless a path and the folders above it, up to ``root``, belong to the user or to root, are
    not writable for others, and are not symbolic links. On Windows, which has no such owners and modes, only links are
    refused; there the access lists of the user's folder keep others out."""
    posix = hasattr(os, "geteuid")
    for each in (path, *path.parents):
        status = each.lstat()
        if stat.S_ISLNK(status.st_mode):
            raise PermissionError(f"{str(each)!r} is a symbolic link")
        if posix and status.st_uid not in (os.geteuid(), 0):
            raise PermissionError(f"{str(each)!r} belongs to another user (number {status.st_uid})")
        if posix and status.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
            raise PermissionError(f"others may write to {str(each)!r} (forbid it with 'chmod go-w')")
        if each == root:
            return


def cached_folder(folder: Path, make: Callable[[Path], dict[str, Any]]) -> dict[str, Any]:
    """Fill a folder of the cache with ``make`` unless that was done before, and return what ``make`` returned (JSON).
    The result is complete or absent, and made again, with a warning, where files have changed. OSError when the disk is
    full."""
    meta = _read_meta(folder)
    if meta is None:
        _fill(folder, make)
        meta = _read_meta(folder)
    if meta is None:
        raise OSError(f"{folder} cannot be read back after it was written; is its disk failing?")
    return meta


def keep_also(folder: Path, other: Path) -> None:
    """Keep a folder of the cache under another name too. Its files are not copied where the file system has hard
    links."""

    def make(partial: Path) -> dict[str, Any]:
        ignored = shutil.ignore_patterns(_META)
        shutil.copytree(folder, partial, copy_function=_link, dirs_exist_ok=True, ignore=ignored)
        return _read_meta(folder) or {}

    cached_folder(other, make)


def _link(source: str, target: str) -> None:
    try:
        os.link(source, target)
    except OSError:
        shutil.copyfile(source, target)


def _fill(folder: Path, make: Callable[[Path], dict[str, Any]]) -> None:
    """Fill a folder, unless another process does so first."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    partial = folder.with_name(f"{PARTIAL}-{folder.name}")
    for left in folder.parent.glob(f"{PARTIAL}-*"):  # left by a killed process, unless its lock is held
        with suppress(BlockingIOError), lock(_lock_of(folder.with_name(left.name.removeprefix(f"{PARTIAL}-")))):
            shutil.rmtree(left, ignore_errors=True)
    with lock(_lock_of(folder), wait=True):
        if _read_meta(folder) is not None:
            return
        if folder.exists():
            warnings.warn(f"{folder} is damaged or of an earlier version; making it again", stacklevel=4)
        try:
            partial.mkdir()
            meta = make(partial)
            (partial / _META).write_text(
                json.dumps({**meta, "digest": _digest(partial, meta)}, indent=1), encoding="utf-8"
            )
            shutil.rmtree(folder, ignore_errors=True)
            partial.rename(folder)
        except Exception as error:
            if not (is_full_disk(error) or of_library(error)):
                raise
            raise OSError(
                f"cannot write to the cache in {folder.parent} ({one_line(error)}); free space, or set LAGWISE_CACHE "
                "to a folder on another disk"
            ) from error
        finally:
            shutil.rmtree(partial, ignore_errors=True)


def _read_meta(folder: Path) -> dict[str, Any] | None:
    """Read the information on a folder; None if it is absent, or any of its files has changed."""
    try:
        meta = json.loads((folder / _META).read_text(encoding="utf-8"))
        digest = meta.pop("digest")
    except (OSError, ValueError, AttributeError, KeyError, TypeError, RecursionError):
        return None
    return meta if digest == _digest(folder, meta) else None


def _digest(folder: Path, meta: dict[str, Any]) -> str:
    """Hash a folder's files and the information on it. The hash is computed whenever the folder is opened, which reads
    about as many bytes as the key of the data themselves."""
    digest = hashlib.sha256(json.dumps(meta, sort_keys=True).encode())
    for path in sorted(f for f in folder.rglob("*") if f.is_file() and f.name != _META):
        with open(path, "rb") as f:
            digest.update(f"{path.relative_to(folder)}:".encode() + hashlib.file_digest(f, "sha256").digest())
    return digest.hexdigest()


def _lock_of(folder: Path) -> Path:
    return folder.with_name(f"{folder.name}.lock")
