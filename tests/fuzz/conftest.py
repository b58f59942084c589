"""Count malformed inputs that were refused correctly."""

from __future__ import annotations

from typing import Any


def pytest_terminal_summary(terminalreporter: Any) -> None:
    count = {}
    for kind in ("passed", "failed"):
        reports = [r for r in terminalreporter.getreports(kind) if r.when == "call" and "test_malformed" in r.nodeid]
        count[kind] = len(reports)
    total = sum(count.values())
    if total:
        terminalreporter.write_line(f"malformed input: {count['passed']} of {total} refused in one line")
