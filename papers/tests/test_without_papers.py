"""What names a part of lagwise-papers works with it, and without it says in one sentence how to get it."""

from __future__ import annotations

import os
import subprocess
import sys
import tomllib
from importlib.metadata import entry_points
from pathlib import Path

import pytest

from lagwise import outside

ROOT = Path(__file__).parents[2]
# What an environment without lagwise-papers is like for a new process.
HIDE = """
import sys, importlib.metadata as metadata
sys.modules["lagwise_papers"], found = None, metadata.entry_points
metadata.entry_points = lambda **which: [p for p in found(**which) if not p.value.startswith("lagwise_papers")]
"""
REMEDY = "is in lagwise-papers, which is not installed: pip install ./papers"


def output(code: str, *, hidden: bool) -> str:
    """What a process prints that runs code, or the last line of its error."""
    path = os.pathsep.join(filter(None, sys.path))
    command = [sys.executable, "-c", (HIDE if hidden else "") + code]
    done = subprocess.run(command, capture_output=True, text=True, env={**os.environ, "PYTHONPATH": path}, check=False)
    return (done.stderr.strip().splitlines()[-1] if done.returncode else done.stdout).strip()


def declared() -> dict[str, dict[str, str]]:
    """The entry points of lagwise-papers, by group."""
    project = tomllib.loads((ROOT / "papers" / "pyproject.toml").read_text())["project"]
    return project["entry-points"]


def test_every_entry_point_is_installed_and_loads_and_is_known_to_lagwise() -> None:
    for group, parts in declared().items():
        installed = {point.name: point for point in entry_points(group=group)}
        for name, place in parts.items():
            assert installed[name].value == place, "install lagwise-papers anew: make install"
            installed[name].load()
            assert name in outside.IN_PAPERS, group


MODEL = """
from lagwise import LagwiseConfig, LagwiseForCausalLM
block = {{"name": "prenorm", "token_mixer": {{"name": "{mixer}"}}}}
config = LagwiseConfig.from_dict({{"hidden_size": 8, "num_hidden_layers": 1, "block": block}})
print("lagwise_papers" in str([type(part) for part in LagwiseForCausalLM(config).modules()]))
"""


@pytest.mark.parametrize("mixer", ["lru", "gmlp"])
def test_a_configuration_with_a_mixer_of_another_paper(mixer: str) -> None:
    code = MODEL.format(mixer=mixer)
    assert output(code, hidden=False) == "True"
    assert output(code, hidden=True) == f"ValueError: token mixer {mixer!r} {REMEDY}, in a clone of lagwise"


def test_what_nobody_has_is_unknown_as_before() -> None:
    for hidden in (False, True):
        assert "unknown token mixer: 'lrv'" in output(MODEL.format(mixer="lrv"), hidden=hidden)
