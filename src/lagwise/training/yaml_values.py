"""A YAML reader for plain values of moderate size."""

from __future__ import annotations

import re
from typing import Any

import yaml

from lagwise.files import one_line

_MAX_NODES, _MAX_DEPTH = 10_000, 50  # values with aliases expanded, and levels of nesting


class _Loader(yaml.SafeLoader):
    """A YAML loader without octal numbers such as 010 (8) and sexagesimal numbers such as 1:30 (90)."""


_INTEGER = "tag:yaml.org,2002:int"
_Loader.yaml_implicit_resolvers = {
    first: [pair for pair in pairs if pair[0] != _INTEGER]
    for first, pairs in yaml.SafeLoader.yaml_implicit_resolvers.items()
}
_Loader.add_implicit_resolver(_INTEGER, re.compile(r"[-+]?(0|[1-9][0-9_]*)$"), list("-+0123456789"))


def parsed(text: bytes | str, what: str) -> Any:
    """Parse YAML as plain values. ValueError unless it is valid and of moderate size after expanding aliases."""
    try:
        loader = _Loader(text)
        root = loader.get_single_node()
        if not _is_moderate(root):
            raise ValueError(f"it has over {_MAX_NODES} values, aliases written out, or is over {_MAX_DEPTH} deep")
        return None if root is None else loader.construct_document(root)
    except (yaml.YAMLError, ValueError, RecursionError, LookupError, TypeError, AttributeError) as error:
        raise ValueError(f"{what} is not valid YAML: {one_line(error)}") from error


def _is_moderate(root: yaml.Node | None) -> bool:
    """Whether a document is neither large nor deep. An alias counts as the node it refers to, because a few lines of
    aliases can expand to any size, or contain themselves."""
    waiting, count = [(root, 1)], 0
    while waiting:
        node, depth = waiting.pop()
        count += 1
        if count > _MAX_NODES or depth > _MAX_DEPTH:
            return False
        if isinstance(node, yaml.MappingNode):
            _require_distinct(node)
            waiting += ((part, depth + 1) for pair in node.value for part in pair)
        elif isinstance(node, yaml.SequenceNode):
            waiting += ((part, depth + 1) for part in node.value)
    return True


def _require_distinct(node: yaml.MappingNode) -> None:
    """ValueError for a key that occurs twice: YAML's readers would drop one of the values."""
    keys = [key for key, _ in node.value if isinstance(key, yaml.ScalarNode)]
    seen: set[str] = set()
    for key in keys:
        if key.value in seen:
            raise ValueError(f"{key.value!r} occurs twice, again in line {key.start_mark.line + 1}")
        seen.add(key.value)
