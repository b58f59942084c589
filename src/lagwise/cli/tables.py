"""The printed results of commands."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import typer

from lagwise.cli.terminal import plain, print_table
from lagwise.runs.evaluate import open_run
from lagwise.tasks.classification_results import constant_note, constant_of


def print_evaluation(run: Path, evaluation: Mapping[str, Any]) -> None:
    """Print the result of `lagwise.runs.evaluate_run`."""
    recipe, task = open_run(run, plain=True)
    if recipe.data.source is not None:  # otherwise they are generated
        typer.echo(plain(f"Test data: {evaluation['data']}"))
    for table in task.tables(evaluation):
        print_table(*table)
    constant = constant_of(evaluation)
    if constant and (note := constant_note(evaluation["test"], constant, task.headline.name, "test rows")):
        typer.echo(note)
    if left_out := evaluation.get("left_out"):
        typer.echo(f"Left out, as they are over the model's limit of tokens: {', '.join(map(str, left_out))}")


def print_conversion(result: Mapping[str, Any]) -> None:
    """Print the result of `lagwise.runs.convert_run`."""
    print_table(
        f"Kernels as state spaces of {result['modes']} modes, every error within {result['tolerance']:g}",
        ("layer", "taps", "states: min / median / max", "error"),
        (
            (
                ".".join(part for part in each["layer"].split(".") if part.isdigit()),
                each["taps"],
                " / ".join(map(str, each["order"])),
                f"{each['error']:.1e}",
            )
            for each in result["layers"]
        ),
    )
    typer.echo(
        "A mode is an exponential of the lag. A channel keeps one number, its state, for each real mode and two for "
        "each complex one, in place of the tokens that its taps reach. The error is certified: it holds for every "
        "channel at every frequency, relative to the channel's largest gain."
    )
    metric = result.get("metric", "bits_per_byte")
    rows = [
        (
            f"{result['label']} at {score['length']}",
            f"{score['before']:.4f}",
            f"{score['after']:.4f}",
            f"{score['after'] - score['before']:+.1e}",
        )
        for score in result.get(metric, ())
    ]
    if speeds := result.get("tokens_per_second"):  # none where the model takes only a few tokens
        before, after = speeds["before"], speeds["after"]
        rows.append(("tokens/s", f"{before:,.0f}", f"{after:,.0f}", f"{after / before:.2f}x"))
    if rows:
        print_table("The model", ("", "before", "after", "change"), rows)
    if "not_measured" in result:
        typer.echo(plain(f"The model's quality was not measured: {result['not_measured']}"))
    typer.echo(plain(f"Written: {result['out']}"))
