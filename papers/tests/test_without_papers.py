"""What names a part of lagwise-papers works with it, and without it says in one sentence how to get it."""

from __future__ import annotations

import contextlib
import io
import json
import os
import subprocess
import sys
import tomllib
from importlib.metadata import entry_points
from pathlib import Path

import pytest
from typer.testing import CliRunner

from lagwise import outside
from lagwise.cli.main import app
from lagwise.training import recipe_names

ROOT = Path(__file__).parents[2]
# What an environment without lagwise-papers is like for a new process.
HIDE = """
import sys, importlib.metadata as metadata
sys.modules["lagwise_papers"], found = None, metadata.entry_points
metadata.entry_points = lambda **which: [p for p in found(**which) if not p.value.startswith("lagwise_papers")]"""
REMEDY = "is in lagwise-papers, which is not installed: pip install ./papers"


def said(codes: list[str]) -> list[str]:
    """What each code prints, its error included."""
    lines = []
    for code in codes:
        out = io.StringIO()
        try:
            with contextlib.redirect_stdout(out), contextlib.redirect_stderr(out):
                exec(code, {"sys": sys})
        except ValueError as error:
            out.write(f"ValueError: {error}")
        except SystemExit:
            pass
        lines.append(out.getvalue().strip())
    return lines


def said_without(codes: list[str]) -> list[str]:
    """The same in a process that does not find lagwise-papers."""
    code = f"{HIDE}; import json; from test_without_papers import said; print(json.dumps(said({codes!r})))"
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=environment, check=True)
    return json.loads(done.stdout)


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


SAVED = ROOT / "tests" / "runs" / "saved-by-0.1" / "recall"
IMPORTS = "from lagwise.data import *; from lagwise.training import load_recipe, make_task; "
# Code, and what its error begins with where lagwise-papers is not installed.
CALLS = {
    "load_recipe('lra-text-small')": "recipe 'lra-text-small'",
    "load_recipe('glue-rte', ['data.source=x'])": "recipe 'glue-rte'",
    f"make_task(load_recipe({str(SAVED / 'recipe.yaml')!r}))": "task 'associative_recall'",
    "make_task(load_recipe('classify', ['data.format=listops', 'data.source=x']))": "`format` for this task",
    "make_task(load_recipe({earlier!r}, ['data.source=x']))": "task 'dna_classification'",
    "load_tokenizer('dna')": "tokenizer 'dna'",
    "open_rows({genes!r})": "cannot read ",
    "open_source({genes!r})": "cannot read ",
}
IMAGES = "from lagwise.data.image_files import open_images; open_images({!r})"
BENCH = "sys.argv[1:] = ['bench', 'tcn', '8']; from lagwise.cli import main; main()"


@pytest.mark.slow
def test_what_is_in_the_package_works_with_it_and_is_named_without_it(tmp_path: Path) -> None:
    files = {"earlier": tmp_path / "recipe.yaml", "genes": tmp_path / "genes.fa"}
    files["earlier"].write_text("task: {name: sequence_classification, reverse_complement: true}\n")
    files["genes"].write_text(">a\nACGT\n")
    (tmp_path / "imgs" / "0").mkdir(parents=True)
    (tmp_path / "imgs" / "0" / "sample_0.png").write_bytes(b"x")
    calls = [IMPORTS + call.format(**{name: str(path) for name, path in files.items()}) for call in CALLS]
    mixers = [MODEL.format(mixer=mixer) for mixer in ("lru", "gmlp", "lrv")]
    images = [IMAGES.format(source) for source in ("lra-pathfinder:10", str(tmp_path))]

    *found, unknown = said([*calls, *mixers])
    assert found == [""] * len(calls) + ["True"] * 2
    assert "unknown token mixer: 'lrv'" in unknown
    assert "No such command 'nothing'" in CliRunner().invoke(app, ["bench", "nothing"]).output

    lines = said_without([*calls, *mixers, BENCH, *images])
    for what, line in zip(CALLS.values(), lines, strict=False):
        assert line.startswith(f"ValueError: {what}")
        assert REMEDY in line
    lru, gmlp, unknown, command, pathfinder, folder = lines[len(calls) :]
    for mixer, line in (("lru", lru), ("gmlp", gmlp)):
        assert line == f"ValueError: token mixer {mixer!r} {REMEDY}, in a clone of lagwise"
    assert "unknown token mixer: 'lrv'" in unknown
    assert command == f"error: command 'bench' {REMEDY}, in a clone of lagwise"
    assert f"data 'lra-pathfinder:10' {REMEDY}" in pathfinder
    assert "lagwise-papers" in folder
