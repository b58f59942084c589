"""The printed results of commands."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import typer

from lagwise.cli.terminal import plain, print_table
from lagwise.runs.evaluate import open_run
from lagwise.tasks.labelled import constant_note, constant_of


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
    if speeds := result.get("tokens_per_second"):  # none where the model takes only a few tokens
        before, after = speeds["before"], speeds["after"]
        typer.echo(f"Tokens/s: {before:,.0f} before, {after:,.0f} after ({after / before:.2f}x)")
    typer.echo(plain(f"Written: {result['out']}"))
