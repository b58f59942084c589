"""Results of commands as tables."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import typer

from lagwise.analysis.report import accuracy_rows, comparison_rows
from lagwise.cli.terminal import plain, print_table


def print_evaluation(evaluation: Mapping[str, Any]) -> None:
    """The result of `lagwise.evaluation.evaluate_run`."""
    if "valid" not in evaluation:
        title = f"Accuracy, trained at {evaluation['trained_at']}"
        print_table(title, ("length", "accuracy", "sequences"), accuracy_rows(evaluation))
        return
    valid, test = evaluation["valid"], evaluation["test"]
    rows = [(name, f"{value:.3f}") for name, value in comparison_rows(evaluation)]
    rows.append((f"(validation, length {valid['length']})", f"{valid['bits_per_byte']:.3f}"))
    print_table(f"The same {test[0]['text_bytes']:,} test bytes", ("", "bits/byte"), rows)
    print_table(
        f"Extrapolation: trained at {evaluation['trained_at']}, the same test bytes at other lengths",
        ("length", "bits/byte", "perplexity/token"),
        ((s["length"], f"{s['bits_per_byte']:.4f}", f"{s['perplexity']:.4f}") for s in test),
    )
    if test[-1]["length"] > test[-1]["tokens"]:
        typer.echo(f"The test text has only {test[-1]['tokens']:,} tokens: longer lengths are all of it at once.")


def print_conversion(result: Mapping[str, Any]) -> None:
    """The result of `lagwise.evaluation.convert_run`."""
    print_table(
        f"Kernels as state spaces of {result['modes']} modes, tolerance {result['tolerance']:g}",
        ("layer", "taps", "states: least / median / most", "bound", "error"),
        (
            (
                ".".join(part for part in each["layer"].split(".") if part.isdigit()),
                each["taps"],
                " / ".join(map(str, each["order"])),
                f"{each['bound']:.1e}",
                f"{each['error']:.1e}",
            )
            for each in result["layers"]
        ),
    )
    rows = [
        (
            f"bits/byte at {score['length']}",
            f"{score['before']:.4f}",
            f"{score['after']:.4f}",
            f"{score['after'] - score['before']:+.1e}",
        )
        for score in result.get("bits_per_byte", ())
    ]
    before, after = (result["tokens_per_second"][when] for when in ("before", "after"))
    rows.append(("tokens/s", f"{before:,.0f}", f"{after:,.0f}", f"{after / before:.2f}x"))
    print_table("The model", ("", "before", "after", "change"), rows)
    if "not_measured" in result:
        typer.echo(plain(f"Bits per byte were not measured: {result['not_measured']}"))
    typer.echo(plain(f"Written: {result['out']}"))
