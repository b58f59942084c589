"""Measure the structure of lagwise beside another version's: its size, and the functions that work passes through.

    python benchmarks/structure.py --peer OTHER/src --out benchmarks/results/structure.json

Lines are those of Python files, by package. States are the classes of streaming states. A circle is a set of modules
that import each other, for annotations and in functions too. Functions are those of lagwise that are called, each
counted once, and calls all of their calls: for one token of a stream (two layers of `tnn-lm`, after a prompt), for a
product with a kernel's taps, for a table of 40 rows that is prepared for training, and for each further row of it.
"""

from __future__ import annotations

import argparse
import ast
import json
import os
import re
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from scipy.sparse.csgraph import connected_components


def static(package: Path) -> dict[str, Any]:
    """What the files of a package show."""
    files = {path: path.read_text() for path in sorted(package.rglob("*.py"))}
    lines: Counter[str] = Counter()
    for path, text in files.items():
        lines[path.relative_to(package).parts[0].removesuffix(".py")] += text.count("\n")
    modules = {
        ".".join(("lagwise", *path.relative_to(package).with_suffix("").parts)).removesuffix(".__init__"): ast.parse(
            text
        )
        for path, text in files.items()
    }
    names = list(modules)
    imports = np.zeros((len(names), len(names)))
    for name, tree in modules.items():
        for node in ast.walk(tree):
            if isinstance(node, ast.ImportFrom) and node.module:
                for target in (f"{node.module}.{alias.name}" for alias in node.names):
                    target = target if target in modules else node.module
                    if target in modules:
                        imports[names.index(name), names.index(target)] = 1
    _, circle_of = connected_components(imports, connection="strong")
    circles = [[names[i] for i in np.flatnonzero(circle_of == c)] for c in np.flatnonzero(np.bincount(circle_of) > 1)]
    classes = {
        node.name: node for tree in modules.values() for node in ast.walk(tree) if isinstance(node, ast.ClassDef)
    }
    return {
        "lines": {"all": lines.total(), **dict(lines.most_common())},
        "states": sorted(name for name in classes if re.fullmatch(r"\w*State", name)),
        "circles": circles,
        "public names": {name: len(_public(classes[name])) for name in ("Task", "TaskData") if name in classes},
    }


def _public(node: ast.ClassDef) -> set[str]:
    names = {each.name for each in node.body if isinstance(each, ast.FunctionDef)}
    names |= {
        t.id for each in node.body if isinstance(each, ast.Assign) for t in each.targets if isinstance(t, ast.Name)
    }
    names |= {
        each.target.id for each in node.body if isinstance(each, ast.AnnAssign) and isinstance(each.target, ast.Name)
    }
    return {name for name in names if not name.startswith("_")}


def calls_of(work: Callable[[], Any]) -> Counter[str]:
    """Calls of lagwise's functions, by file and name."""
    found: Counter[str] = Counter()

    def note(frame: Any, event: str, _: Any) -> None:
        code = frame.f_code
        if event == "call" and f"{os.sep}lagwise{os.sep}" in code.co_filename and not code.co_name.startswith("<"):
            found[f"{code.co_filename}:{code.co_qualname}"] += 1

    sys.setprofile(note)
    try:
        work()
    finally:
        sys.setprofile(None)
    return found


def dynamic() -> dict[str, dict[str, float]]:
    """Functions and calls of a token, of taps and of a row, in this process's lagwise."""
    import torch

    from lagwise.data import prepare_labelled
    from lagwise.mixers import MIXERS
    from lagwise.models import LagwiseConfig, LagwiseForCausalLM
    from lagwise.training import load_recipe

    mixer, x = MIXERS["toeplitz"](8).eval(), torch.randn(1, 100, 8)
    model = LagwiseForCausalLM(LagwiseConfig(**{**load_recipe("tnn-lm").model, "num_hidden_layers": 2})).eval()
    ids = torch.randint(0, 256, (1, 40))
    with torch.no_grad(), tempfile.TemporaryDirectory() as folder:
        cache = model(ids[:, :-2], use_cache=True).past_key_values
        model(ids[:, -2:-1], past_key_values=cache)
        token = calls_of(lambda: model(ids[:, -1:], past_key_values=cache))
        taps = calls_of(lambda: mixer(x))
        by_rows = []
        for rows in (40, 40, 140):  # the first one imports and remembers
            table = Path(folder, f"{len(by_rows)}.csv")
            table.write_text("text,label\n" + "".join(f"row {i} of many,{'ab'[i % 2]}\n" for i in range(rows)))
            options = {"cache": Path(folder, f"cache-{len(by_rows)}"), "progress": False}
            by_rows.append(calls_of(lambda table=table, options=options: prepare_labelled(str(table), **options)))
    _, table, longer = by_rows
    row = Counter({name: longer[name] - table[name] for name in longer if longer[name] - table[name] >= 100})
    parts = {"token": token, "taps": taps, "table": table}
    result = {name: {"functions": len(each), "calls": each.total()} for name, each in parts.items()}
    return {**result, "row": {"functions": len(row), "calls": row.total() / 100}}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--peer", type=Path, help="the folder src of the other version")
    parser.add_argument("--out", type=Path)
    parser.add_argument("--child", action="store_true", help=argparse.SUPPRESS)
    chosen = parser.parse_args()
    if chosen.child:
        print(json.dumps(dynamic()))
        return
    rows = {}
    for name, source in (("this", Path(__file__).parents[1] / "src"), ("peer", chosen.peer)):
        if source is not None:
            command, env = [sys.executable, __file__, "--child"], {**os.environ, "PYTHONPATH": str(source.resolve())}
            done = subprocess.run(command, env=env, capture_output=True, text=True, check=True)
            rows[name] = {**static(source / "lagwise"), **json.loads(done.stdout.splitlines()[-1])}
    print(json.dumps(rows, indent=1))
    if chosen.out:
        from lagwise.analysis.timing import save_results  # which the other version need not have

        save_results(chosen.out, "python benchmarks/structure.py --peer OTHER/src", rows)


if __name__ == "__main__":
    main()
