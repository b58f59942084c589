"""The server keeps what its OpenAPI description says, for requests that Schemathesis makes of it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from transformers import PreTrainedTokenizerBase

from lagwise.models import LagwiseForCausalLM
from lagwise.serving.scheduler import Scheduler

schemathesis = pytest.importorskip("schemathesis")
pytest.importorskip("fastapi")


@pytest.fixture(scope="module")
def description(model: LagwiseForCausalLM, tokenizer: PreTrainedTokenizerBase) -> Iterator[Any]:
    from lagwise.serving.app import make_app

    scheduler = Scheduler(model, tokenizer, rows=4, queue=4, max_tokens=4)
    scheduler.start()
    yield schemathesis.openapi.from_asgi("/openapi.json", make_app(scheduler, "small", max_body=10_000))
    scheduler.stop()


@pytest.mark.slow
@schemathesis.pytest.from_fixture("description").parametrize()
@settings(max_examples=40, deadline=None, suppress_health_check=list(HealthCheck))
def test_requests_of_the_description_are_answered_as_it_says(case: Any) -> None:
    case.call_and_validate()
