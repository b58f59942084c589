"""Values of options that typer does not parse itself."""

from __future__ import annotations

import typer


def whole_numbers(text: str, option: str) -> list[int]:
    """``1,2,3`` as numbers of at least 1."""
    try:
        numbers = [int(part) for part in text.split(",")]
    except ValueError:
        numbers = []
    if not numbers or min(numbers) < 1:
        raise typer.BadParameter(f"{option} are whole numbers of at least 1, separated by commas, got {text!r}")
    return numbers
