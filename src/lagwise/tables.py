"""Named parts: how a name with options in a configuration becomes a module.

A *spec* is a dictionary such as ``{"name": "rpe", "layers": 3}``. Each package keeps a plain table from names to
classes; `build` looks the name up and checks every other key against the constructor, so a typo is an error and not a
default.
"""

from __future__ import annotations

import difflib
import inspect
import math
import reprlib
import types
import typing
from collections.abc import Callable, Hashable, Mapping, Sequence
from contextlib import suppress
from typing import Any

from lagwise.files import one_line

LARGEST_OPTION = 2**24  # of a part's whole numbers: sizes and counts
LARGEST_VOCABULARY = 2**20  # that is trained, or made up by a task: a few times the largest in use
_MOST_LISTED = 275  # characters of the names that a message lists
_QUOTED = reprlib.Repr()
_QUOTED.maxstring, _QUOTED.maxother, _QUOTED.maxlevel = 100, 100, 3
Spec = Mapping[str, Any]


def build(table: Mapping[str, Callable[..., Any]], spec: Spec, *args: Any, what: str, **context: Any) -> Any:
    """Construct the part that a spec names.

    Positional ``args`` and keyword ``context`` come from the caller (channels, causal); everything else in the spec
    must be a keyword-only parameter of the constructor. ValueError names the unknown key and the nearest known one.
    """
    if not isinstance(spec, Mapping) or not isinstance(spec.get("name"), str):
        raise ValueError(f"{what} must be a mapping with a 'name', got {shown(spec)}")
    part = table.get(known(spec["name"], table, what))
    assert part is not None
    accepted = [p.name for p in inspect.signature(part).parameters.values() if p.kind is p.KEYWORD_ONLY]
    hints = typing.get_type_hints(part.__init__ if inspect.isclass(part) else part)
    options = {key: value for key, value in spec.items() if key != "name"}
    for key, value in options.items():
        known(key, [name for name in accepted if name not in context], f"option of {what} {spec['name']!r}")
        options[key] = typed(hints[key], value, key, most=LARGEST_OPTION)
    try:
        return part(*args, **{key: value for key, value in context.items() if key in accepted}, **options)
    except (TypeError, OverflowError, RuntimeError) as error:  # products of sizes that no number or tensor holds
        raise ValueError(f"{what} {spec['name']!r} cannot be built from {shown(options)}: {one_line(error)}") from error


def typed(kind: Any, value: Any, where: str, *, most: int = 2**63 - 1) -> Any:
    """The value, if it is of the type that an annotation names; else ValueError.

    A whole number is no boolean and no 2.0, and at most ``most`` either way. A float is finite; it may be given as a
    whole number, or as text, since YAML reads 1e-3 as text. Of sequences every item is checked, of mappings none.
    """
    if kind is Any:
        return value
    origin, inner = typing.get_origin(kind), typing.get_args(kind)
    if origin in (types.UnionType, typing.Union):
        members = [each for each in inner if each is not type(None)]
        if value is None and len(members) < len(inner):
            return None
        if len(members) == 1:
            return typed(members[0], value, where, most=most)
        for each in members:
            with suppress(ValueError):
                return typed(each, value, where, most=most)
    elif kind is float and isinstance(value, int | float | str) and not isinstance(value, bool):
        try:
            number = float(value)
        except (ValueError, OverflowError):
            number = math.nan
        if math.isfinite(number):
            return number
    elif kind is int and isinstance(value, int) and not isinstance(value, bool):
        if abs(value) > most:
            raise ValueError(f"{where} must be at most {most}, got {shown(value)}")
        return value
    elif origin in (list, tuple, Sequence) and isinstance(value, list | tuple):
        return [typed(inner[0], item, f"{where}[{i}]", most=most) for i, item in enumerate(value)]
    elif kind is not int and isinstance(value, origin or kind):
        return value
    raise ValueError(f"{where} must be {_described(kind)}, got {shown(value)}")


def _described(kind: Any) -> str:
    origin, inner = typing.get_origin(kind), typing.get_args(kind)
    if origin in (types.UnionType, typing.Union):
        return " or ".join(map(_described, inner))
    if origin in (list, tuple, Sequence):
        return f"a list, each item {_described(inner[0])}"
    names = {int: "a whole number", float: "a finite number", bool: "true or false", str: "text", type(None): "null"}
    return names.get(origin or kind, "a mapping")


def shown(value: Any) -> str:
    """A value as it is quoted in messages: shortened, on one line."""
    return _QUOTED.repr(value)


def known(name: Any, names: Any, what: str) -> Any:
    """Return the name if it is one of ``names``; else ValueError with the nearest of them."""
    if isinstance(name, Hashable) and name in names:
        return name
    near = difflib.get_close_matches(shown(name).strip("'"), [str(n) for n in names], n=1)
    hint = f"; did you mean {near[0]!r}?" if near else ""
    listed = ", ".join(map(str, names)) or "none"
    if len(listed) > _MOST_LISTED:
        listed = f"{listed[:_MOST_LISTED].rpartition(',')[0]}, ..."
    raise ValueError(f"unknown {what}: {shown(name)}{hint} (known: {listed})")


def whole_number(name: str, value: Any, least: int = 1) -> int:
    """Return the value if it is a whole number (a boolean is not) of at least ``least``; else ValueError."""
    if not isinstance(value, int) or isinstance(value, bool) or value < least:
        raise ValueError(f"{name} must be a whole number of at least {least}, got {shown(value)}")
    return value
