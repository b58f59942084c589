"""Where things are kept between runs that can be made again: token files, timings, compiled loops."""

from __future__ import annotations

import errno
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


def default_cache() -> Path:
    """``$LAGWISE_CACHE``, else ``~/.cache/lagwise``."""
    return Path(os.environ.get("LAGWISE_CACHE", "~/.cache/lagwise")).expanduser()


@contextmanager
def written_whole(folder: Path) -> Iterator[Path]:
    """A new folder beside ``folder`` to write into; it takes the place of ``folder`` when the block ends without error.

    So ``folder`` is complete or absent. If another process has put one there meanwhile, that one stays. OSError with
    advice when the disk is full.
    """
    folder.parent.mkdir(parents=True, exist_ok=True)
    partial = Path(tempfile.mkdtemp(prefix=f"{folder.name}.", dir=folder.parent))
    try:
        yield partial
        try:
            partial.rename(folder)
        except OSError:
            if not folder.is_dir():
                raise
    except OSError as error:
        if error.errno == errno.ENOSPC:
            message = f"no space for files in {folder.parent}; free some or set LAGWISE_CACHE to another disk"
            raise OSError(errno.ENOSPC, message) from error
        raise
    finally:
        shutil.rmtree(partial, ignore_errors=True)
