"""How many small changes of a package's code its tests notice: `make mutate PACKAGE=forecasting`.

Every mutant changes one comparison, operator, condition or number. Tests that reach its line run, the quickest first,
until one fails; a mutant that none of them notices survives. Mutants are drawn by a seed, and run in processes forked
from one that has imported PyTorch, with the changed code in memory only. (mutmut leaves out decorated functions and
wraps others, whose signatures lagwise.tables reads; cosmic-ray starts a process for each, which imports PyTorch again.)
"""

from __future__ import annotations

import ast
import importlib.machinery
import multiprocessing
import os
import random
import sys
import tempfile
import time
from bisect import bisect
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
_PAIRS += ((ast.Add, ast.Sub), (ast.Mult, ast.Div), (ast.And, ast.Or))
SWAPPED = {one: other for pair in _PAIRS for one, other in (pair, pair[::-1])} | {ast.FloorDiv: ast.Div}
LONGEST = 20.0  # seconds of tests for a mutant


def places(node: ast.AST) -> Iterator[tuple[ast.AST, Callable[[Any], None]]]:
    """The changes of a tree: the node, and a function that changes its copy. Messages and annotations are left out."""
    if isinstance(node, (ast.Raise, ast.JoinedStr, ast.AnnAssign, ast.Import, ast.ImportFrom)):
        return
    if isinstance(node, (ast.BinOp, ast.BoolOp)) and type(node.op) in SWAPPED:
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
    return ast.fix_missing_locations(tree), f"{path}:{shown.lineno}: {before} -> {ast.unparse(shown)}"[:160]


def run(tests: list[str], options: list[str], path: Path | None = None, number: int = 0) -> None:
    """Run tests in this process, with a change of a file if one is given; its status is pytest's."""
    if path is not None:
        code = importlib.machinery.SourceFileLoader.get_code
        target, tree = str(path.resolve()), mutated(path, number)[0]
        importlib.machinery.SourceFileLoader.get_code = lambda self, name: (  # type: ignore[method-assign]
            compile(tree, target, "exec", dont_inherit=True) if self.path == target else code(self, name)
        )
    for stream in (1, 2):
        os.dup2(os.open(os.devnull, os.O_WRONLY), stream)
    os._exit(pytest.main([*tests, "-q", "-p", "no:cacheprovider", *options]))


def covering(context: Any, package: str) -> tuple[dict[str, float], dict[str, dict[int, set[str]]]]:
    """The seconds of each test that passes, and the tests that run each line of each file."""
    with tempfile.TemporaryDirectory() as folder:
        os.environ["COVERAGE_FILE"] = f"{folder}/coverage"
        options = (f"--cov=src/lagwise/{package}", "--cov-context=test", "--cov-report=", "-o", "junit_family=xunit1")
        process = context.Process(target=run, args=([f"tests/{package}"], [*options, f"--junitxml={folder}/times.xml"]))
        process.start()
        process.join()
        cases = [case for case in ElementTree.parse(f"{folder}/times.xml").iter("testcase") if not list(case)]
        seconds = {f"{case.get('file')}::{case.get('name')}": float(case.get("time", 0)) for case in cases}
        data = CoverageData(f"{folder}/coverage")
        data.read()
        found: dict[str, dict[int, set[str]]] = {}
        for file in data.measured_files():
            by_line = data.contexts_by_lineno(file).items()
            found[file] = {line: {name.partition("|")[0] for name in names} & seconds.keys() for line, names in by_line}
    return seconds, found


def main(package: str, seconds: float = 1800, seed: int = 0, out: Path | None = None) -> None:
    sys.dont_write_bytecode = True
    context: Any = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(list(PRELOADED))
    times, lines = covering(context, package)
    files = sorted(Path("src/lagwise", package).rglob("*.py"))
    mutants = [(file, i) for file in files for i in range(len(list(places(ast.parse(file.read_text())))))]
    random.Random(seed).shuffle(mutants)
    survivors, tried, end = [], 0, time.monotonic() + seconds
    for path, number in mutants:
        if time.monotonic() > end:
            break
        said, by_line = mutated(path, number)[1], lines.get(str(path.resolve()), {})
        reaching = by_line.get(int(said.split(":")[1]), set()) or set().union(*by_line.values())
        ordered = sorted(reaching, key=times.__getitem__)
        chosen = ordered[: bisect(list(accumulate(times[test] for test in ordered)), LONGEST)]
        process = context.Process(target=run, args=(chosen, ["-x"], path, number))
        process.start()
        process.join(3 * LONGEST + 30)  # a change that never ends is noticed
        noticed = process.exitcode != 0 and bool(chosen)
        process.kill()
        tried += 1
        survivors += [] if noticed else [said]
        print(f"{'noticed' if noticed else 'SURVIVED'}: {said} ({len(chosen)} tests)", flush=True)
    score = 1 - len(survivors) / max(1, tried)
    print(f"{score:.1%} of {tried} mutants are noticed, of {len(mutants)} there are")
    if out:
        from lagwise_papers.bench.timing import save_results

        figures = {"seed": seed, "mutants": len(mutants), "tried": tried, "score": score, "survivors": survivors}
        save_results(out, f"make mutate PACKAGE={package} SECONDS={seconds:g}", figures)


if __name__ == "__main__":
    typer.run(main)
