"""What the scripts that queue trainings share: run folders that are begun, resumed or left, and results that last."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from lagwise.bench.harness import save_results

_WRITING = threading.Lock()  # runs end in several threads


def lagwise(log: Path, *arguments: str) -> None:
    """Run the command line on one thread. CalledProcessError if it fails."""
    with open(log, "a") as file:
        command = [sys.executable, "-m", "lagwise", *arguments]
        subprocess.run(command, env={**os.environ, "OMP_NUM_THREADS": "1"}, stdout=file, stderr=file, check=True)


def finish(run: Path, new: Sequence[str], evaluation: Sequence[str] = ()) -> dict[str, Any]:
    """Train a run, by ``lagwise train`` with the arguments ``new`` or from where it was stopped, and evaluate it, each
    unless that is done; the log is beside the run.

    Returns its machine, and what the log says of every evaluation: step, ``eval_NAME`` by name.
    """
    log = run.with_name(f"{run.name}.log")
    if not (run / "config.json").is_file():
        begun = (run / "recipe.yaml").is_file()
        lagwise(log, "train", *(["--resume", str(run)] if begun else ["--out", str(run), *new]))
    if not (run / "evaluation.json").is_file():
        lagwise(log, "evaluate", str(run), *evaluation)
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    return {
        "machine": json.loads((run / "run.json").read_text()),
        "evaluations": [line for line in lines if "eval_loss" in line],
    }


def scores(run: Path) -> dict[str, Any]:
    """The evaluation of a finished run."""
    return json.loads((run / "evaluation.json").read_text())


def keep(results: Path, name: str, found: dict[str, Any]) -> None:
    """Add what was found of a run to a results file."""
    with _WRITING:
        kept = json.loads(results.read_text())["results"] if results.is_file() else {}
        save_results(results, " ".join(["python", *sys.argv]), {**kept, name: found})
