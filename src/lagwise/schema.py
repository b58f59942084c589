"""Options of a recipe: each is declared once, with its type, range, default and meaning, and checked by pydantic."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Annotated, Any

from pydantic import BeforeValidator, ConfigDict, Field, Strict, TypeAdapter, ValidationError
from pydantic.dataclasses import dataclass
from pydantic_core import PydanticKnownError

from lagwise.tables import known, shown


def _number(value: Any) -> Any:
    """Floats may be given as integers, or as text, because YAML reads 1e-3 as text; but not as booleans."""
    if isinstance(value, bool):
        raise PydanticKnownError("float_type")
    return value


Whole = Annotated[int, Strict(), Field(ge=-(2**63), lt=2**63)]
Count = Annotated[Whole, Field(ge=1)]
Number = Annotated[float, BeforeValidator(_number), Field(allow_inf_nan=False)]
Share = Annotated[Number, Field(ge=0, lt=1)]
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
    "int": "a whole number",
    "float": "a finite number",
    "finite": "a finite number",
    "bool": "true or false",
    "string": "text",
    "list": "a list",
    "dict": "a mapping",
    "dataclass": "a mapping",
}


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
    name = ".".join(place[:1] + [part if not part.isdigit() else f"[{part}]" for part in place[1:]]).replace(".[", "[")
    if first["type"] in _RANGES:
        raise ValueError(f"{name} {_RANGES[first['type']].format(**first['ctx'])}, got {shown(first['input'])}")
    if first["type"] == "invalid_key":
        raise ValueError(f"the keys of {what} must be text, got {shown(first['input'])} in {name!r}")
    kind = _KINDS.get(first["type"].partition("_")[0], "valid")
    raise ValueError(f"{name} must be {kind}, got {shown(first['input'])}")


def meanings(cls: Any) -> Iterator[tuple[str, Any, Any, str]]:
    """Name, type, default and meaning of each option of a dataclass."""
    for name, field in cls.__pydantic_fields__.items():
        yield name, field.annotation, field.default, field.description or ""
