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
from lagwise.training import recipe_names

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
            assert name in outside.IN_PAPERS or group in ("lagwise.recipes", "lagwise.image_layouts"), group
    recipes = {path.stem for path in (ROOT / "papers" / "src" / "lagwise_papers" / "recipes").glob("*.yaml")}
    assert recipes <= outside.IN_PAPERS & set(recipe_names())


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


SAVED = ROOT / "tests" / "runs" / "saved-by-0.1" / "recall"


@pytest.mark.parametrize(
    ("call", "what"),
    [
        ("load_recipe('lra-text-small')", "recipe 'lra-text-small'"),
        ("load_recipe('glue-rte', ['data.source=x'])", "recipe 'glue-rte'"),
        (f"make_task(load_recipe({str(SAVED / 'recipe.yaml')!r}))", "task 'associative_recall'"),
        ("make_task(load_recipe('classify', ['data.format=listops', 'data.source=x']))", "`format` for this task"),
        ("make_task(load_recipe({earlier!r}, ['data.source=x']))", "task 'dna_classification'"),
        ("load_tokenizer('dna')", "tokenizer 'dna'"),
        ("open_rows({genes!r})", "cannot read "),
        ("open_source({genes!r})", "cannot read "),
    ],
)
def test_recipes_tasks_and_formats(call: str, what: str, tmp_path: Path) -> None:
    files = {"earlier": tmp_path / "recipe.yaml", "genes": tmp_path / "genes.fa"}
    files["earlier"].write_text("task: {name: sequence_classification, reverse_complement: true}\n")
    files["genes"].write_text(">a\nACGT\n")
    code = "from lagwise.data import *; from lagwise.training import load_recipe, make_task; "
    code += call.format(**{name: str(path) for name, path in files.items()})
    assert output(code, hidden=False) == ""
    last = output(code, hidden=True)
    assert last.startswith(f"ValueError: {what}")
    assert REMEDY in last


def test_generated_images_without_the_package(tmp_path: Path) -> None:
    code = "from lagwise.data.image_files import open_images; open_images({!r})"
    assert f"data 'lra-pathfinder:10' {REMEDY}" in output(code.format("lra-pathfinder:10"), hidden=True)
    (tmp_path / "imgs" / "0").mkdir(parents=True)
    (tmp_path / "imgs" / "0" / "sample_0.png").write_bytes(b"x")
    assert "lagwise-papers" in output(code.format(str(tmp_path)), hidden=True)
