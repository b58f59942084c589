"""Module attributes that are imported at first use."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any


def listed(names: Sequence[str]) -> Callable[[], list[str]]:
    """A module-level ``__dir__`` of its public names, some of which are imported at first use."""
    return lambda: sorted(names)


def lazy(module: str, homes: Mapping[str, str]) -> Callable[[str], Any]:
    """A module-level ``__getattr__`` (PEP 562) that imports each name from the module given in ``homes``."""

    def __getattr__(name: str) -> Any:
        if name in homes:
            return getattr(importlib.import_module(homes[name]), name)
        raise AttributeError(f"module {module!r} has no attribute {name!r}")

    return __getattr__
