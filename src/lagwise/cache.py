"""Where things are kept between runs that can be made again: token files, timings, compiled kernels."""

from __future__ import annotations

import os
import stat
from pathlib import Path


def default_cache() -> Path:
    """``$LAGWISE_CACHE``, or ``~/.cache/lagwise`` if that is unset or empty; made, for the user alone, if missing.

    ValueError if the user has no home folder, or ``~name`` in the variable names nobody.
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
    """Make a folder, and those above it that are missing, to which only the user has access, whatever the umask."""
    for each in (*reversed(folder.parents), folder):
        if not each.is_dir():
            each.mkdir(mode=0o700, exist_ok=True)


def require_private(path: Path, root: Path) -> None:
    """PermissionError unless a path and the folders above it, up to ``root``, belong to the user or to root, are
    writable for nobody else, and are no symbolic links."""
    for each in (path, *path.parents):
        status = each.lstat()
        if stat.S_ISLNK(status.st_mode):
            raise PermissionError(f"{str(each)!r} is a symbolic link")
        if status.st_uid not in (os.geteuid(), 0):
            raise PermissionError(f"{str(each)!r} belongs to another user (number {status.st_uid})")
        if status.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
            raise PermissionError(f"others may write to {str(each)!r} (forbid it with 'chmod go-w')")
        if each == root:
            return
