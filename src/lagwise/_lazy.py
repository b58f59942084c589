"""Module attributes that are imported at first use."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from lagwise.extras import explained


def lazy(
    module: str, names: Sequence[str], homes: Mapping[str, str], extra: str | None = None
) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """A module-level ``__getattr__`` (PEP 562) that imports each name from the module given in ``homes``, and a
    ``__dir__`` of all public ``names``.

    ImportError if an optional package is missing; it says which extra has it, if possible ``extra``."""

    def __getattr__(name: str) -> Any:
        if name in homes:
            try:
                return getattr(importlib.import_module(homes[name]), name)
            except ModuleNotFoundError as error:
                raise explained(error, extra) from error
        raise AttributeError(f"module {module!r} has no attribute {name!r}")

    return __getattr__, lambda: sorted(names)


def lazy_package(
    package: str, *, extra: str | None = None, **names: str
) -> tuple[list[str], Callable[[str], Any], Callable[[], list[str]]]:
    """``__all__``, and `lazy`, of a package: from the public names of each of its modules, separated by spaces."""
    homes = {name: f"{package}.{module}" for module, own in names.items() for name in own.split()}
    public = sorted(homes)
    return public, *lazy(package, public, homes, extra)
