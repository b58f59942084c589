"""Optional packages: the table of extras is that of pyproject.toml, and what is missing is named."""

from __future__ import annotations

import importlib.metadata
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from lagwise.extras import EXTRAS, PACKAGES, explained, require

ROOT = Path(__file__).parents[1]
PYPROJECT, PAPERS = ROOT / "pyproject.toml", ROOT / "papers" / "pyproject.toml"


def plain(name: str) -> str:
    """A package's name in lower case with dashes."""
    return re.sub(r"[-_.]+", "-", name).lower()


def listed(extra: str, file: Path = PYPROJECT) -> set[str]:
    """The packages that a pyproject.toml lists for an extra, also through other extras."""
    project = tomllib.loads(file.read_text())["project"]
    own = project["optional-dependencies"][extra]
    found = {re.split(r"[\[>=<,;]", text)[0] for text in own} - {project["name"]}
    for other in re.findall(rf"{project['name']}\[(\w+)\]", " ".join(own)):
        found |= listed(other, file)
    return found


@pytest.mark.parametrize("extra", EXTRAS)
def test_an_extra_installs_what_its_table_says(extra: str) -> None:
    assert {PACKAGES.get(name, name) for name in EXTRAS[extra]} <= listed(extra)


def test_the_tested_version_of_every_package_is_written_down() -> None:
    """But for torchvision, each version of which needs one of torch."""
    project = tomllib.loads(PYPROJECT.read_text())["project"]
    needed = {re.split(r"[>=<]", text)[0] for text in project["dependencies"]}
    needed |= set().union(*map(listed, project["optional-dependencies"])) - {"torchvision"}
    needed |= set().union(*(listed(extra, PAPERS) for extra in ("bench", "peers")))
    written = re.findall(r"^([\w.-]+)==", (ROOT / "constraints.txt").read_text(), re.MULTILINE)
    assert {plain(name) for name in needed} <= {plain(name) for name in written}


def test_every_optional_package_that_lagwise_imports_is_in_an_extra() -> None:
    """And none comes only with another package, as scipy once came with scikit-learn."""
    project = tomllib.loads(PYPROJECT.read_text())["project"]
    always = {re.split(r"[>=<]", text)[0] for text in project["dependencies"]}
    owners = importlib.metadata.packages_distributions()
    imports = re.compile(r"^ *(?:import|from) (\w+)", re.MULTILINE)
    texts = [path.read_text() for path in (ROOT / "src").rglob("*.py")]
    names = {name for text in texts for name in imports.findall(text)} - {"lagwise"} - sys.stdlib_module_names
    ours = {module for modules in EXTRAS.values() for module in modules}
    # needed by transformers, fastapi, pydantic, and PyTorch's builds for GPUs
    parts = {"packaging", "tokenizers", "huggingface_hub", "starlette", "pydantic_core", "triton"}
    known = {owner.lower() for owner in always} | parts
    unknown = {
        name
        for name in names & owners.keys()  # words at the start of lines of prose are no modules
        if name not in ours and not known & {owner.lower() for owner in owners[name]}
    }
    assert not unknown


def test_a_missing_package_is_named_with_its_extra() -> None:
    with pytest.raises(ImportError, match=r"^a test needs no_such and nor_this: install lagwise\[plot\] \(in a clone"):
        require("plot", "a test", "no_such", "nor_this", "json")
    error = ModuleNotFoundError("No module named 'sklearn.base'", name="sklearn.base")
    assert str(explained(error)).startswith("scikit-learn is missing: install lagwise[train]")
    assert "lagwise[forecast]" in str(explained(error, "forecast"))
    assert "lagwise[train]" in str(explained(error, "export"))  # which does not have it
    other = ModuleNotFoundError("No module named 'mine'", name="mine")
    assert explained(other) is other


@pytest.mark.slow
def test_language_models_need_no_scipy() -> None:
    """`evaluate` and `convert` work after an install without extras, though tasks of forecasts are beside theirs."""
    code = "import sys; sys.modules['scipy'] = sys.modules['sklearn'] = None; import lagwise.runs.convert"
    subprocess.run([sys.executable, "-c", code], check=True)
