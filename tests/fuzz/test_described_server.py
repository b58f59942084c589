"""Requests drawn by schemathesis from the server's OpenAPI description are answered as it says."""

from __future__ import annotations

import os
from typing import Any

import pytest
from guided.harnesses import server
from hypothesis import HealthCheck, given, settings

CASES = os.environ.get("LAGWISE_FUZZ_CASES")  # of each path, and as many that break the description


@pytest.mark.slow
def test_answers_are_as_described() -> None:
    """Values that the server's model or limits refuse, such as unknown tokens, are no fault of the description."""
    schemathesis = pytest.importorskip("schemathesis", reason="the extra 'fuzz' is not installed")
    from schemathesis.specs.openapi.checks import positive_data_acceptance

    def check(case: Any) -> None:
        for part in (case.body, case.path_parameters):
            if isinstance(part, dict) and isinstance(part.get("model"), str):
                part["model"] = "m"  # which no drawn text is
        answer = case.call(timeout=100)
        statuses.add((case.path, answer.status_code))
        case.validate_response(answer, excluded_checks=[positive_data_acceptance])

    often = settings(max_examples=int(CASES or "8"), derandomize=not CASES, deadline=None, database=None)
    often = settings(often, suppress_health_check=[*HealthCheck])
    statuses: set[tuple[str, int]] = set()
    description = schemathesis.openapi.from_asgi("/openapi.json", server())
    for operation in (found.ok() for found in description.get_all_operations()):
        for mode in list(schemathesis.GenerationMode)[: 2 if operation.method == "post" else 1]:
            drawn = operation.as_strategy(generation_mode=mode)
            often(given(drawn)(check))()
    posts = ("/v1/completions", "/v1/chat/completions", "/v1/embeddings")
    assert statuses >= {(path, status) for path in posts for status in (200, 400)}, statuses
