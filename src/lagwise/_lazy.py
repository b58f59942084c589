"""Module attributes that are imported at first use."""

from __future__ import annotations

import ast
import importlib
import pkgutil
from collections.abc import Callable
from typing import Any

from lagwise.extras import explained


def lazy_package(
    package: str, *, extra: str | None = None
) -> tuple[list[str], Callable[[str], Any], Callable[[], list[str]]]:
    """Return ``__all__``, ``__getattr__`` (PEP 562), which imports each name from its module, and ``__dir__`` of a
    package.

    The names, and their modules, are those that the package's ``__init__`` imports from lagwise for type checkers. From
    ``__getattr__`` ImportError if an optional package is missing; it says which extra has it, if possible ``extra``.
    """
    source = pkgutil.get_data(package, "__init__.py")
    assert source is not None
    checked = next(node for node in ast.parse(source).body if isinstance(node, ast.If))
    imports = [node for node in checked.body if isinstance(node, ast.ImportFrom)]
    homes = {alias.name: str(node.module) for node in imports for alias in node.names}

    def __getattr__(name: str) -> Any:
        if name in homes:
            try:
                return getattr(importlib.import_module(homes[name]), name)
            except ModuleNotFoundError as error:
                raise explained(error, extra) from error
        raise AttributeError(f"module {package!r} has no attribute {name!r}")

    names = sorted(homes)
    return names, __getattr__, lambda: names
