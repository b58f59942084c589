"""Named parts: how a name with options in a configuration becomes a module.

A *spec* is a dictionary such as ``{"name": "rpe", "layers": 3}``. Each room keeps a plain table from names to classes;
`build` looks the name up and checks every other key against the constructor, so a typo is an error and not a default.
"""

from __future__ import annotations

import difflib
import inspect
from collections.abc import Callable, Mapping
from typing import Any

Spec = Mapping[str, Any]


def build(table: Mapping[str, Callable[..., Any]], spec: Spec, *args: Any, what: str, **context: Any) -> Any:
    """Construct the part that a spec names.

    Positional ``args`` and keyword ``context`` come from the caller (channels, causal); everything else in the spec
    must be a keyword-only parameter of the constructor. ValueError names the unknown key and the nearest known one.
    """
    if not isinstance(spec, Mapping) or not isinstance(spec.get("name"), str):
        raise ValueError(f"{what} must be a mapping with a 'name', got {spec!r}")
    part = table.get(known(spec["name"], table, what))
    assert part is not None
    accepted = [p.name for p in inspect.signature(part).parameters.values() if p.kind is p.KEYWORD_ONLY]
    options = {key: value for key, value in spec.items() if key != "name"}
    for key in options:
        known(key, [name for name in accepted if name not in context], f"option of {what} {spec['name']!r}")
    try:
        return part(*args, **{key: value for key, value in context.items() if key in accepted}, **options)
    except TypeError as error:  # an option of a type that the arithmetic of the constructor refuses
        raise ValueError(f"{what} {spec['name']!r} cannot be built from {options}: {error}") from error


def known(name: Any, names: Any, what: str) -> Any:
    """Return the name if it is one of ``names``; else ValueError with the nearest of them."""
    if name in names:
        return name
    near = difflib.get_close_matches(str(name), [str(n) for n in names], n=1)
    hint = f"; did you mean {near[0]!r}?" if near else ""
    raise ValueError(f"unknown {what}: {name!r}{hint} (known: {', '.join(map(str, names)) or 'none'})")


def whole_number(name: str, value: Any, least: int = 1) -> int:
    """Return the value if it is a whole number (a boolean is not) of at least ``least``; else ValueError."""
    if not isinstance(value, int) or isinstance(value, bool) or value < least:
        raise ValueError(f"{name} must be a whole number of at least {least}, got {value!r}")
    return value
