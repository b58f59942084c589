"""Packages, the order of their dependencies, and the cost of imports."""

from __future__ import annotations

import ast
import functools
import graphlib
import importlib
import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

PACKAGE = Path(__file__).parent.parent / "src" / "lagwise"
PAPERS = PACKAGE.parents[1] / "papers" / "src" / "lagwise_papers"  # which may import all of lagwise
# Each package may import itself, those before it, and the small modules at the top of the package.
PACKAGES = ("ops", "kernels", "mixers", "blocks", "models", "data", "forecasting", "evaluation", "tasks", "training")
PACKAGES += ("runs", "serving", "analysis", "titan", "cli", "testing")
TOP = {path.stem for path in PACKAGE.glob("*.py")} - {"__init__", "__main__"}


@functools.cache  # and not when tests are collected, which takes every process its time
def trees() -> dict[Path, ast.Module]:
    return {path: ast.parse(path.read_text()) for path in sorted(PACKAGE.rglob("*.py"))}


def module_of(path: Path) -> str:
    return ".".join(("lagwise", *path.relative_to(PACKAGE).with_suffix("").parts)).removesuffix(".__init__")


def imported(tree: ast.AST) -> set[str]:
    """The modules and names that a file imports anywhere."""
    nodes = [*ast.walk(tree)]
    names = {alias.name for node in nodes if isinstance(node, ast.Import) for alias in node.names}
    froms = [node for node in nodes if isinstance(node, ast.ImportFrom)]
    assert not any(node.level for node in froms), "a relative import"
    return names | {f"{node.module}.{alias.name}" for node in froms for alias in node.names}


def test_packages_depend_only_on_lower_packages() -> None:
    """Nor on the package of papers, nor on `lagwise/__init__.py`, which is below nothing."""
    for path, tree in trees().items():
        package, names = path.relative_to(PACKAGE).parts[0], imported(tree)
        allowed = {*PACKAGES[: PACKAGES.index(package) + 1], *TOP} if package in PACKAGES else {*PACKAGES, *TOP}
        imports = {name.split(".")[1] for name in names if name.startswith("lagwise.")}
        assert imports <= allowed or package == "__main__.py", path
        assert not [name for name in names if name.partition(".")[0] == PAPERS.name], path


def test_there_are_no_circular_imports() -> None:
    graph, modules = {}, {module_of(path) for path in trees()}
    for path, tree in trees().items():
        name = module_of(path)
        graph[name] = imports_when_loaded(tree, modules, is_package=path.name == "__init__.py") - {name}
    assert sum(map(len, graph.values())) > 500
    graphlib.TopologicalSorter(graph).prepare()  # CycleError names the modules


def imports_when_loaded(tree: ast.Module, modules: set[str], *, is_package: bool) -> set[str]:
    """Modules of lagwise that a module imports when it is loaded, or for annotations (a package's `__init__` lists its
    names so); not those in functions."""

    def statements(body: Sequence[ast.stmt]) -> Iterator[ast.stmt]:
        for node in body:
            listed = is_package and isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test)
            if not listed and not isinstance(node, ast.FunctionDef | ast.ClassDef):
                yield node
                yield from statements([*getattr(node, "body", []), *getattr(node, "orelse", [])])

    imports = set()
    for node in statements(tree.body):
        if isinstance(node, ast.ImportFrom) and str(node.module).partition(".")[0] == "lagwise":
            names = {f"{node.module}.{alias.name}" for alias in node.names}
            imports |= {name if name in modules else str(node.module) for name in names}
    return imports & modules


def test_lower_packages_know_no_options_of_the_command_line() -> None:
    """Their messages name arguments in backticks, which the command line writes as its options."""
    of_others = "--index-url", "--nproc-per-node", "--parallelism_config_"  # options of pip, torchrun and accelerate
    for path, tree in trees().items():
        if path.relative_to(PACKAGE).parts[0] in PACKAGES[: PACKAGES.index("serving")]:
            strings = [n.value for n in ast.walk(tree) if isinstance(n, ast.Constant) and isinstance(n.value, str)]
            options = [option for each in strings for option in re.findall(r"(?<![\w-])--[a-z][\w-]*", each)]
            assert set(options) <= set(of_others), path


def test_packages_use_no_private_names_of_each_other() -> None:
    for path, tree in {**trees(), **{path: ast.parse(path.read_text()) for path in PAPERS.rglob("*.py")}}.items():
        for module, _, name in (each.rpartition(".") for each in imported(tree) if each.startswith("lagwise.")):
            other = PACKAGE.parent.joinpath(*module.split("."))
            shared = path.parent in (other.parent, other)
            assert shared or not name.startswith("_") or name == "__version__", f"{path}: {module}.{name}"


def test_ops_has_a_small_public_interface() -> None:
    import lagwise.ops

    assert len(lagwise.ops.__all__) <= 25


def test_every_folder_is_a_package() -> None:
    folders = {f.name for f in PACKAGE.iterdir() if f.is_dir() and f.name != "__pycache__"}
    assert folders == {*PACKAGES, "recipes"}


def test_files_hold_one_concept() -> None:
    """Where a file is cut is decided by what it is about. One of over 500 lines says why it is not two."""
    for folder in ("src", "papers", "tests", "benchmarks", "docs", "examples"):
        texts = {path: path.read_text() for path in (PACKAGE.parents[1] / folder).rglob("*.py")}
        assert texts
        long = [path for path, text in texts.items() if len(text.splitlines()) > 500]
        assert not [path for path in long if "# One concept:" not in texts[path]]


def loaded_after(modules: tuple[str, ...], *statements: str) -> list[set[str]]:
    """Which of the modules a new process has loaded after each of the statements."""
    code = "import sys\n" + "".join(
        f"{each}\nprint(*[m for m in {modules!r} if m in sys.modules])\n" for each in statements
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return [set(line.split()) for line in result.stdout.splitlines()]


def test_importing_is_cheap() -> None:
    modules = ("torch", "transformers")
    *none, layers = loaded_after(
        modules,
        "import lagwise",
        "import lagwise.training.recipe",
        "from lagwise.forecasting import choose_forecaster",
        "import lagwise.ops, lagwise.mixers",
    )
    assert none == [set()] * 3
    assert layers == {"torch"}


def loaded_by(command: list[str], folder: Path, *modules: str) -> set[str]:
    """Which of the modules a command of the program has loaded at its end."""
    code = (
        "import sys, contextlib; from lagwise.cli import main\n"
        f"sys.argv = {['lagwise', *command]!r}\n"
        "with contextlib.redirect_stdout(sys.stderr), contextlib.suppress(SystemExit): main()\n"
        f"print(*[m for m in {modules!r} if m in sys.modules])"
    )
    result = subprocess.run([sys.executable, "-c", code], cwd=folder, capture_output=True, text=True, check=True)
    return set(result.stdout.split())


def test_commands_load_no_package_that_they_do_not_use(tmp_path: Path) -> None:
    """torch and transformers take seconds to load, of which a forecast of closed forms has no use."""
    rows = [f"{2000 + i // 12}-{i % 12 + 1:02},{i % 12}" for i in range(60)]
    (tmp_path / "months.csv").write_text("\n".join(["month,value", *rows]) + "\n")
    large = ("torch", "transformers", "datasets", "pandas", "sklearn")
    assert loaded_by(["--help"], tmp_path, *large) == set()
    forecast = ["forecast", "--data", "months.csv", "--horizon", "2", "--model", "ridge", "--out", "forecast.csv"]
    assert loaded_by(forecast, tmp_path, *large) == {"pandas", "sklearn"}
    assert (tmp_path / "forecast.csv").is_file()


@pytest.mark.parametrize("environment", [{}, {"GOMP_SPINCOUNT": "7"}, {"OMP_WAIT_POLICY": "passive"}])
def test_process_settings_do_not_override_the_users(environment: dict[str, str]) -> None:
    code = "import os, lagwise.process as p; p.share_cores(); print(os.environ.get('GOMP_SPINCOUNT'))"
    inherited = {k: v for k, v in os.environ.items() if k not in ("GOMP_SPINCOUNT", "OMP_WAIT_POLICY")}
    result = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, env={**inherited, **environment}
    )
    expected = {"7": "7", None: "5000"}[environment.get("GOMP_SPINCOUNT")]
    assert result.stdout.strip() == ("None" if "OMP_WAIT_POLICY" in environment else expected)


@pytest.mark.parametrize(
    "statement",
    [
        "from transformers import AutoModelForCausalLM as A; import lagwise",
        "import lagwise; from transformers import AutoModelForCausalLM as A",
        "import lagwise; from transformers import GPT2LMHeadModel, AutoModelForCausalLM as A",
        "from lagwise.models import LagwiseModel; from transformers import AutoModelForCausalLM as A",
        "import lagwise; lagwise.LagwiseConfig; from transformers import AutoModelForCausalLM as A",
    ],
)
@pytest.mark.slow  # in the process of every test lagwise comes first
def test_auto_classes_are_registered_in_any_order_of_imports(statement: str) -> None:
    check = "import lagwise; A.from_config(lagwise.LagwiseConfig(hidden_size=8, num_hidden_layers=1))"
    modeling = "lagwise.models.modeling"
    assert loaded_after((modeling,), f"{statement}; {check}") == [{modeling}]


@pytest.mark.parametrize("name", ["lagwise", "lagwise.data", "lagwise.models", "lagwise.training"])
def test_names_that_are_imported_at_first_use_are_listed(name: str) -> None:
    """For completion in shells and editors."""
    module = importlib.import_module(name)
    assert set(module.__all__) <= set(dir(module))


def entered(call: Callable[[], Any]) -> set[str]:
    """The library's files whose functions a call enters."""
    root, files, before = f"{PACKAGE}/", set(), sys.gettrace()

    def note(frame: FrameType, event: str, argument: Any) -> None:
        if frame.f_code.co_filename.startswith(root):
            files.add(frame.f_code.co_filename.removeprefix(root))

    sys.settrace(note)
    try:
        call()
    finally:
        sys.settrace(before)
    return files


@pytest.mark.cpu  # on a GPU other engines serve
def test_a_layer_and_a_token_enter_few_files() -> None:
    """A reader opens them to follow a call. The numbers are what there was, to be lowered with the code."""
    import torch

    from lagwise.models import LagwiseConfig, LagwiseForCausalLM
    from lagwise.training.recipe import load_recipe

    model = LagwiseForCausalLM(LagwiseConfig(vocab_size=257, **load_recipe("tnn-lm").model))
    layer, x = model.model.layers[0], torch.randn(2, 512, model.config.hidden_size, requires_grad=True)
    layer(x)  # C loops are compiled, and plans made, by the first call
    files = entered(lambda: layer(x))
    assert "mixers/toeplitz.py" in files
    assert len(files) <= 17, sorted(files)
    ids, cache = torch.randint(0, 256, (1, 8)), model.eval().model.new_cache()
    with torch.no_grad():
        model(ids, cache=cache, use_cache=True)
        model(ids[:, :1], cache=cache, use_cache=True)
        files = entered(lambda: model(ids[:, :1], cache=cache, use_cache=True, logits_to_keep=1))
    assert "ops/streaming/online.py" in files
    assert len(files) <= 19, sorted(files)
