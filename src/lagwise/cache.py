"""Where things are kept between runs that can be made again: token files, timings, compiled loops."""

from __future__ import annotations

import os
from pathlib import Path


def default_cache() -> Path:
    """``$LAGWISE_CACHE``, else ``~/.cache/lagwise``."""
    return Path(os.environ.get("LAGWISE_CACHE", "~/.cache/lagwise")).expanduser()
