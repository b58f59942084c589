"""The examples in docstrings run, and print what they say."""

from __future__ import annotations

import doctest
import importlib
import inspect
import re
from pathlib import Path

import pytest
import torch

PACKAGE = Path(__file__).parents[1] / "src" / "lagwise"
WITH_EXAMPLES = [
    ".".join(path.relative_to(PACKAGE.parent).with_suffix("").parts)
    for path in sorted(PACKAGE.rglob("*.py"))
    if "    >>> " in path.read_text()
]

#: How many public functions and classes have no example of their own, since pages or what contains them have one.
WITHOUT_EXAMPLE = {
    "ops": 5,
    "kernels": 10,
    "mixers": 4,
    "blocks": 4,
    "models": 4,
    "forecasting": 6,
    "data": 33,
    "tasks": 10,
}


@pytest.mark.parametrize("package", WITHOUT_EXAMPLE)
def test_public_names_have_examples(package: str) -> None:
    module = importlib.import_module(f"lagwise.{package}")
    public = {name: getattr(module, name) for name in module.__all__}
    documented = {name: each for name, each in public.items() if inspect.isclass(each) or inspect.isfunction(each)}
    without = [name for name, each in documented.items() if ">>> " not in str(each.__doc__)]
    assert len(without) <= WITHOUT_EXAMPLE[package], without


@pytest.mark.sampled(2)
@pytest.mark.parametrize("name", WITH_EXAMPLES)
def test_examples_run(name: str) -> None:
    result = doctest.testmod(importlib.import_module(name), extraglobs={"torch": torch})
    assert result.attempted
    assert not result.failed


def test_every_option_of_a_part_is_explained() -> None:
    """A recipe may set the keyword-only arguments of tasks, blocks, mixers and kernels, and the configuration's."""
    from lagwise.blocks import BLOCKS, CHANNEL_MIXERS
    from lagwise.kernels import KERNELS
    from lagwise.mixers import MIXERS
    from lagwise.models.configuration import LagwiseConfig, field_types
    from lagwise.tasks import TASKS

    parts = [part for table in (TASKS, BLOCKS, CHANNEL_MIXERS, MIXERS, KERNELS) for part in table.values()]
    assert len(parts) >= 25
    for part in parts:
        names = {p.name for p in inspect.signature(part).parameters.values() if p.kind is p.KEYWORD_ONLY} - {"causal"}
        explained = (inspect.getdoc(part) or "").partition("Options")[2]
        missing = {name for name in names if not re.search(rf"\b{name}\b", explained)}
        assert not missing, f"{part.__name__}: {missing}"
    missing = {name for name in field_types() if name not in (LagwiseConfig.__doc__ or "")}
    assert not missing, f"LagwiseConfig: {missing}"
