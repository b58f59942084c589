"""How many small changes of a package's code its tests notice: `make mutate PACKAGE=kernels`.

Tests that reach the changed line run, each function's quickest case first, until one fails; a mutant that none notices
survives. Mutants are drawn by a seed, changed in memory only, and run in processes forked from one that has imported
PyTorch. Code for Triton (ops/fused) is left out: without a GPU, `make test-triton` alone runs it. (mutmut leaves out
decorated functions and wraps others, whose signatures lagwise.tables reads; cosmic-ray starts a process for each.)
"""

from __future__ import annotations

import ast
import importlib.machinery
import json
import multiprocessing
import os
import random
import resource
import tempfile
import time
from bisect import bisect
from collections import Counter
from collections.abc import Callable, Iterator
from itertools import accumulate
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
import typer
from coverage import CoverageData

PRELOADED = ("torch", "transformers", "pandas", "scipy.signal", "sklearn.linear_model", "pytest", "hypothesis")
_PAIRS = ((ast.Lt, ast.LtE), (ast.Gt, ast.GtE), (ast.Eq, ast.NotEq), (ast.Is, ast.IsNot), (ast.In, ast.NotIn))
_PAIRS += ((ast.Add, ast.Sub), (ast.Mult, ast.Div), (ast.And, ast.Or), (ast.USub, ast.UAdd))
SWAPPED = {one: other for pair in _PAIRS for one, other in (pair, pair[::-1])} | {ast.FloorDiv: ast.Div}
LONGEST = 30.0  # seconds of tests for a mutant
CONTROL = 10  # before each tenth mutant, its tests run without it, and must pass

# Sources in src/lagwise and tests in tests, where they are not a package and the tests of its name. Slow tests run,
# too, where the sources are no package.
PARTS = {
    "ops": ("ops", "ops mixers kernels models/test_padding_anywhere.py"),
    "mixers": ("mixers", "mixers ops"),
    "fits": (
        "forecasting/smoothing.py forecasting/moments.py forecasting/fitting.py",
        "forecasting/test_smoothing.py forecasting/test_moments.py forecasting/test_unobserved.py",
    ),
    "conversion": ("models/conversion.py runs/convert.py", "models/test_conversion.py runs/test_convert_run.py"),
    "sampling": (
        "models/generation.py serving/scheduler.py",
        "models/test_generation.py models/test_text_generation.py serving/test_scheduler.py serving/test_app.py",
    ),
}


def places(node: ast.AST) -> Iterator[tuple[ast.AST, Callable[[Any], None]]]:
    """The changes of a tree: the node, and a function that changes its copy. Messages and annotations are left out."""
    if isinstance(node, (ast.Raise, ast.JoinedStr, ast.Import, ast.ImportFrom)):
        return
    if isinstance(node, (ast.BinOp, ast.BoolOp, ast.UnaryOp)) and type(node.op) in SWAPPED:
        yield node, lambda it: setattr(it, "op", SWAPPED[type(it.op)]())
    if isinstance(node, ast.Compare) and type(node.ops[0]) in SWAPPED:
        yield node, lambda it: it.ops.__setitem__(0, SWAPPED[type(it.ops[0])]())
    if isinstance(node, (ast.If, ast.IfExp)) and getattr(node.test, "id", "") != "TYPE_CHECKING":
        yield node, lambda it: setattr(it, "test", ast.copy_location(ast.UnaryOp(ast.Not(), it.test), it.test))
    if isinstance(node, ast.Constant) and isinstance(node.value, (bool, int, float)):
        yield node, lambda it: setattr(it, "value", not it.value if isinstance(it.value, bool) else it.value + 1)
    for name, child in ast.iter_fields(node):
        if name not in ("annotation", "returns"):
            for each in child if isinstance(child, list) else [child]:
                if isinstance(each, ast.AST):
                    yield from places(each)


def mutated(path: Path, number: int) -> tuple[ast.Module, str]:
    """The tree of a file with one of its changes, and what the change is."""
    tree = ast.parse(path.read_text())
    node, change = list(places(tree))[number]
    before = ast.unparse(getattr(node, "test", node))
    change(node)
    shown: Any = getattr(node, "test", node)
    return ast.fix_missing_locations(
        tree
    ), f"{path}:{shown.lineno}:{shown.col_offset}: {before} -> {ast.unparse(shown)}"[:200]


def run(tests: list[str], options: list[str], path: Path | None = None, number: int = 0) -> None:
    """Run tests in this process, with a change of a file if one is given; its status is pytest's."""
    if path is not None:
        limit = round(4 * LONGEST)  # seconds of the processor, however busy the machine: an endless change is noticed
        resource.setrlimit(resource.RLIMIT_CPU, (limit, limit))
        code = importlib.machinery.SourceFileLoader.get_code
        target, tree = str(path.resolve()), mutated(path, number)[0]
        importlib.machinery.SourceFileLoader.get_code = lambda self, name: (  # type: ignore[method-assign]
            compile(tree, target, "exec", dont_inherit=True) if self.path == target else code(self, name)
        )
    for stream in (1, 2):
        os.dup2(os.open(os.devnull, os.O_WRONLY), stream)
    os._exit(pytest.main([*tests, "-q", "-p", "no:cacheprovider", "--timeout=0", "-m", "slow or not slow", *options]))


def statement(tree: ast.Module, line: int) -> range:
    """The lines of the innermost statement at a line, without what a compound statement contains."""
    spans = []
    for node in ast.walk(tree):
        if isinstance(node, ast.stmt) and node.lineno <= line <= (node.end_lineno or 0):
            inner = [each.lineno for each in getattr(node, "body", [])]
            spans.append(range(node.lineno, min([*inner, (node.end_lineno or 0) + 1])))
    return min((span for span in spans if line in span), key=len, default=range(line, line + 1))


def covering(context: Any, tests: list[str], *marked: str) -> tuple[dict[str, float], dict[str, dict[int, set[str]]]]:
    """The seconds of each test that passes, and the tests that run each line of each file ("" at its import)."""
    with tempfile.TemporaryDirectory() as folder:
        os.environ["COVERAGE_FILE"] = f"{folder}/coverage"
        options = ("--cov=src/lagwise", "--cov-context=test", "--cov-report=", "-o", "junit_family=xunit1", *marked)
        process = context.Process(target=run, args=(tests, [*options, f"--junitxml={folder}/times.xml"]))
        process.start()
        process.join()
        cases = [case for case in ElementTree.parse(f"{folder}/times.xml").iter("testcase") if not list(case)]
        seconds = {}
        for case in cases:
            file, classes = str(case.get("file")), str(case.get("classname")).split(".")
            parts = [file, *classes[len(Path(file).parts) :], str(case.get("name"))]
            seconds["::".join(parts)] = float(case.get("time", 0))
        data = CoverageData(f"{folder}/coverage")
        data.read()
        found: dict[str, dict[int, set[str]]] = {}
        for file in data.measured_files():
            by_line = data.contexts_by_lineno(file).items()
            found[file] = {line: {name.rpartition("|")[0] for name in names} for line, names in by_line}
    return seconds, found


def chosen(reaching: set[str], times: dict[str, float]) -> list[str]:
    """Choose tests of LONGEST seconds in all: the quickest case of each function, then the next of each."""
    counts: Counter[str] = Counter()
    ranked = []
    for test in sorted(reaching & times.keys(), key=times.__getitem__):
        function = test.partition("[")[0]
        ranked.append((counts[function], test))
        counts[function] += 1
    ordered = [test for _, test in sorted(ranked, key=lambda each: (each[0], times[each[1]]))]
    return ordered[: bisect(list(accumulate(times[test] for test in ordered)), LONGEST)]


def noticed(context: Any, tests: list[str], path: Path | None = None, number: int = 0) -> bool:
    """Whether a test fails, or does not end."""
    process = context.Process(target=run, args=(tests, ["-x"], path, number))
    process.start()
    process.join(40 * LONGEST)  # a deadlock
    process.kill()
    return process.exitcode != 0


def main(
    package: str,
    seconds: float = 600,
    seed: int = 0,
    count: int = 40,
    out: Path = Path("benchmarks/results/mutation.json"),
    again: list[str] | None = None,
) -> None:
    """Draw mutants of a package. again: tests that are to notice those that survived in OUT; no others are drawn."""
    from lagwise_papers.bench.timing import save_results  # here, as no process of a mutant may import lagwise before it

    context: Any = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(list(PRELOADED))
    sources, tests = (each.split() for each in PARTS.get(package, (package, package)))
    quick = () if again or package not in os.listdir("src/lagwise") else ("-m", "not slow")
    times, lines = covering(context, again or [f"tests/{name}" for name in tests], *quick)
    roots = [Path("src/lagwise", name) for name in sources]
    files = sorted(file for root in roots for file in (root.rglob("*.py") if root.is_dir() else [root]))
    trees = {file: ast.parse(file.read_text()) for file in files if "fused" not in file.parts}
    mutants = [(file, i) for file, tree in trees.items() for i in range(len(list(places(tree))))]
    saved = json.loads(out.read_text())["results"] if out.exists() else {}
    if again:  # with these tests; the command stays that of the drawing
        outcomes = saved[package]["outcomes"]
        left = [said for said, outcome in outcomes.items() if outcome != "noticed"]
        paths = {said.partition(":")[0] for said in left}
        drawn = [mutant for mutant in mutants if str(mutant[0]) in paths and mutated(*mutant)[1] in left]
    else:
        outcomes, drawn = {}, random.Random(seed).sample(mutants, min(count, len(mutants)))
    end = time.monotonic() + seconds
    for index, (path, number) in enumerate(drawn):
        if time.monotonic() > end:
            break
        said, by_line = mutated(path, number)[1], lines.get(str(path.resolve()), {})
        reaching = set().union(*(by_line.get(line, ()) for line in statement(trees[path], int(said.split(":")[1]))))
        selected = chosen(set().union(*by_line.values()) if reaching == {""} else reaching, times)
        if selected and index % CONTROL == 0 and noticed(context, selected):
            raise SystemExit(f"these tests do not pass alone: {selected}")
        found = noticed(context, selected, path, number) if selected else None
        outcomes[said] = {True: "noticed", False: "survived", None: "not reached"}[found]
        print(f"{outcomes[said]}: {said} ({len(selected)} tests)", flush=True)
    drawing = f"python scripts/mutate.py {package} --seconds {seconds:g} --seed {seed} --count {count}"
    command = saved[package]["command"] if again else drawing
    figures: dict[str, Any] = {"command": command, "places": len(mutants), **Counter(outcomes.values())}
    figures |= {"reasons": saved.get(package, {}).get("reasons", {}), "outcomes": outcomes}
    print(f"{figures.get('noticed', 0)} of {len(outcomes)} mutants are noticed, of {len(mutants)} that there are")
    save_results(out, "make mutate", saved | {package: figures})


if __name__ == "__main__":
    typer.run(main)
