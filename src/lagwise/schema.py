"""The declaration of a recipe's options, each with type, range, default and meaning, and their check by pydantic."""

from __future__ import annotations

import functools
import operator
import typing
from collections.abc import Iterator, Mapping, Sequence
from types import NoneType, UnionType
from typing import Annotated, Any

from pydantic import BeforeValidator, ConfigDict, Field, Strict, TypeAdapter, ValidationError
from pydantic.dataclasses import dataclass
from pydantic_core import PydanticKnownError

from lagwise.tables import known, shown


def _number(value: Any) -> Any:
    """Refuse booleans as numbers. Integers and text pass, because YAML reads 1e-3 as text."""
    if isinstance(value, bool):
        raise PydanticKnownError("float_type")
    return value


Whole = Annotated[int, Strict(), Field(ge=-(2**63), lt=2**63)]
Count = Annotated[Whole, Field(ge=1)]
Number = Annotated[float, BeforeValidator(_number), Field(allow_inf_nan=False)]
Share = Annotated[Number, Field(ge=0, lt=1)]
Weight = Annotated[Number, Field(ge=0)]
Switch = Annotated[bool, Strict()]

#: Makes a dataclass of options; the text below a field is its meaning.
options = dataclass(config=ConfigDict(extra="forbid", use_attribute_docstrings=True))

_RANGES = {
    "greater_than": "must be greater than {gt}",
    "greater_than_equal": "must be at least {ge}",
    "less_than": "must be less than {lt}",
    "less_than_equal": "must be at most {le}",
}
_KINDS = {
    "int": "an integer",
    "float": "a finite number",
    "finite": "a finite number",
    "bool": "true or false",
    "str": "text",
    "string": "text",
    "list": "a list",
    "dict": "a mapping",
    "dataclass": "a mapping",
    "Mapping": "a mapping",
    "Sequence": "a list",
}
_ANY_CLASS = ConfigDict(arbitrary_types_allowed=True)


def typed(kind: Any, value: Any, where: str, *, most: int = 2**63 - 1) -> Any:
    """Return the value if it has the type of an annotation; otherwise raise a ValueError.

    Integers exclude booleans and 2.0, and are at most ``most`` in magnitude. A float is finite; it may be given as an
    integer, or as text, because YAML reads 1e-3 as text. Sequences become lists.
    """
    members = [each for each in typing.get_args(kind) if each is not NoneType] if _is_union(kind) else [kind]
    if len(members) == 1 and value is not None:
        kind = members[0]
    try:
        return _adapter(kind, most).validate_python(value)
    except ValidationError as error:
        first = max(error.errors(include_url=False), key=lambda each: len(each["loc"]))
    place = first["loc"][_is_union(kind) :]  # without the member of the union
    if _is_union(kind) and not place:
        kinds = " or ".join(_KINDS[(typing.get_origin(each) or each).__name__] for each in members)
        raise ValueError(f"{where} must be {kinds}, got {shown(value)}")
    raise _as_error(_path(where, *place), first)


@functools.cache
def _adapter(kind: Any, most: int) -> TypeAdapter:
    return TypeAdapter(_strict(kind, most), config=_ANY_CLASS)


def _strict(kind: Any, most: int) -> Any:
    """Make an annotation strict, as pydantic checks it in a recipe."""
    plain = {int: Annotated[int, Strict(), Field(ge=-most, le=most)], float: Number, bool: Switch}
    if typing.get_origin(kind) is Annotated:
        return Annotated[kind, Field(le=most)] if typing.get_args(kind)[0] is int else kind
    inner = [_strict(each, most) for each in typing.get_args(kind)]
    if typing.get_origin(kind) in (list, tuple, Sequence):
        return list[inner[0]]
    if typing.get_origin(kind) in (dict, Mapping):
        return dict[str, inner[1]]
    return functools.reduce(operator.or_, inner) if _is_union(kind) else plain.get(kind, kind)


def _path(*parts: Any) -> str:
    """Join the parts of a path, as in ``a.b[1]``."""
    return "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in parts).removeprefix(".")


def _is_union(kind: Any) -> bool:
    return typing.get_origin(kind) in (UnionType, typing.Union)


def _as_error(where: str, first: Mapping[str, Any]) -> ValueError:
    """Translate pydantic's error about a value into a ValueError in our words."""
    if first["type"] in _RANGES:
        return ValueError(f"{where} {_RANGES[first['type']].format(**first['ctx'])}, got {shown(first['input'])}")
    kind = _KINDS.get(first["type"].partition("_")[0], "valid")
    return ValueError(f"{where} must be {kind}, got {shown(first['input'])}")


def checked(cls: type, values: Any, what: str) -> Any:
    """Build a dataclass of options, which may hold others, from a mapping.

    Raises:
        ValueError: names the first key that is wrong by its place, and for an unknown key the nearest known one.
    """
    if not isinstance(values, Mapping):
        raise ValueError(f"{what} must be a mapping, got {shown(values)}")
    try:
        return TypeAdapter(cls).validate_python(values)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
    place = [str(part) for part in first["loc"]]
    if first["type"] == "unexpected_keyword_argument":
        section: Any = cls
        for part in place[:-1]:
            section = section.__pydantic_fields__[part].annotation
        names = list(section.__pydantic_fields__)
        known(first["loc"][-1], names, f"key in {'.'.join(place[:-1])}" if place[1:] else f"section of {what}")
    name = _path(place[0], *first["loc"][1:])
    if first["type"] == "invalid_key":
        raise ValueError(f"the keys of {what} must be text, got {shown(first['input'])} in {name!r}")
    raise _as_error(name, first)


def meanings(cls: Any) -> Iterator[tuple[str, Any, Any, str]]:
    """Yield the name, type, default and meaning of each option of a dataclass."""
    for name, field in cls.__pydantic_fields__.items():
        yield name, field.annotation, field.default, field.description or ""
