"""How large the library may be: lines and statements of each package, in one table."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
# Lines and statements at most. A release may change a number, with the reason in its commit; a feature that needs more
# room than its package has left first changes the structure.
BUDGETS = {
    "src/lagwise": (47_000, 29_000),
}


def measured(folder: Path) -> tuple[int, int]:
    """Lines and statements of a folder's Python files."""
    texts = [path.read_text() for path in folder.rglob("*.py")]
    statements = sum(isinstance(node, ast.stmt) for text in texts for node in ast.walk(ast.parse(text)))
    return sum(len(text.splitlines()) for text in texts), statements


@pytest.mark.parametrize("folder", BUDGETS)
def test_a_package_fits_its_budget(folder: str) -> None:
    lines, statements = measured(ROOT / folder)
    assert lines <= BUDGETS[folder][0], f"{folder} has {lines} lines; delete some, or see the table's comment"
    assert statements <= BUDGETS[folder][1], f"{folder} has {statements} statements"
