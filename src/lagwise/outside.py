"""Register classes of other packages under names in our tables."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from importlib.metadata import entry_points
from typing import Any

from lagwise.files import one_line


def add_part(table: dict[str, Any], own: frozenset[str], base: type, what: str, name: str, part: Any) -> None:
    """Put a class into a table under a name.

    ValueError for one of lagwise's ``own`` names, TypeError for anything that is not a subclass of ``base``.
    """
    if name in own:
        raise ValueError(f"lagwise has a {what} {name!r} itself; choose another name")
    if not (isinstance(part, type) and issubclass(part, base)):
        raise TypeError(f"{what} {name!r} must be a subclass of {base.__module__}.{base.__name__}, got {part!r}")
    table[name] = part


def add_installed(group: str, what: str, register: Callable[[str, Any], None]) -> None:
    """Register the entry points that installed packages declare in a group. One that cannot be loaded is named in a
    warning, and the others still work."""
    for point in entry_points(group=group):
        try:
            register(point.name, point.load())
        except Exception as error:
            package = point.dist.name if point.dist else point.value
            warnings.warn(f"{what} {point.name!r} of {package} cannot be loaded: {one_line(error)}", stacklevel=2)
