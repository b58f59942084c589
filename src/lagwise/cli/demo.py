"""The main workflow from end to end, as `make demo` runs it."""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import typer

from lagwise.analysis.report import SAMPLE_FILE, plot_run
from lagwise.cli.tables import print_evaluation
from lagwise.models import generate_text
from lagwise.models.loading import default_device, load_language_model
from lagwise.runs import evaluate_run
from lagwise.training import check_recipe, load_recipe, train

PROMPT = "class "
_MARKER = ".lagwise-demo"  # only a folder that holds this file is ever replaced


def run_demo(out: Path, overrides: Sequence[str], *, write: Callable[[str], None]) -> None:
    """Train the ``demo`` recipe into ``out``, evaluate, sample and plot. ValueError if ``out`` holds something else."""
    started = time.monotonic()
    recipe = load_recipe("demo", overrides)
    check_recipe(recipe)
    if (out / _MARKER).is_file():
        shutil.rmtree(out)
    elif out.is_dir() and any(out.iterdir()):
        raise ValueError(
            f"{str(out)!r} is not an earlier demo, or one that did not finish: choose another folder with --out, or go "
            f"on with 'lagwise train --resume {out}'"
        )
    train(recipe, out)
    (out / _MARKER).touch()
    print_evaluation(out, evaluate_run(out))
    model, tokenizer = load_language_model(out, device=default_device())
    typer.secho("A sample:\n", bold=True)
    text = generate_text(model, tokenizer, PROMPT, max_new_tokens=400, seed=0, write=write)
    (out / SAMPLE_FILE).write_text(text, encoding="utf-8")
    report = plot_run(out)[-1]
    minutes, seconds = divmod(round(time.monotonic() - started), 60)
    typer.secho(f"\nReport: {report.resolve().as_uri()}   ({minutes} min {seconds} s in all)", bold=True)
