"""Timing of streaming classifiers of signals."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from lagwise.models import LagwiseConfig, LagwiseForTokenClassification
from lagwise_papers.bench.signal_speed import table_rows, time_signal


def model(**fields: Any) -> LagwiseForTokenClassification:
    block = {"name": "prenorm", "token_mixer": {"name": "ema", "dimension": 2}}
    config = {"hidden_size": 8, "num_hidden_layers": 1, "block": block, "num_labels": 3, **fields}
    inputs = {"name": "values", "features": 2, "stride": 4}
    return LagwiseForTokenClassification(LagwiseConfig(inputs=inputs, **config)).eval()


def test_every_chunk_size_is_timed() -> None:
    results = time_signal(model(), 100.0, 1.0, [1, 10])
    assert [r.chunk for r in results] == [1, 10]
    for r in results:
        assert 0 < r.median <= r.late <= r.worst
        assert r.real_time > 0
    assert [row[:2] for row in table_rows(results, 100.0)] == [("1", "0.01"), ("10", "0.1")]
    with pytest.raises(ValueError, match="too short for pushes of 500"):
        time_signal(model(), 100.0, 1.0, [500])


def test_a_wrong_stream_is_not_timed(monkeypatch: pytest.MonkeyPatch) -> None:
    wrong = model()
    forward = type(wrong.model).forward

    def later(self: Any, *args: Any, **kwargs: Any) -> Any:
        out = forward(self, *args, **kwargs)
        if kwargs.get("cache") is not None:
            out.last_hidden_state = out.last_hidden_state + torch.linspace(0, 3, 8)
        return out

    with torch.no_grad():
        wrong.classifier.weight.normal_()
    monkeypatch.setattr(type(wrong.model), "forward", later)
    with pytest.raises(ValueError, match="streaming differs by"):
        time_signal(wrong, 100.0, 1.0, [1])
