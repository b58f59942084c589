"""`lagwise.testing.check_model`: lagwise's models pass it, and it finds what is wrong in others."""

from __future__ import annotations

import functools
import json
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from tiny_models import CAUSAL, tiny

from lagwise.data import load_tokenizer
from lagwise.models import LagwiseForCausalLM
from lagwise.testing import check_model

ROOT = Path(__file__).parents[2]


@pytest.mark.sampled(2)
@pytest.mark.parametrize("name", [*CAUSAL, "megalodon-lm", "transformer-learned-lm"])
def test_every_model_of_lagwise_passes(name: str) -> None:
    report = check_model(tiny(name, sharp=True), load_tokenizer("bytes"), tolerance=1e-6)
    assert not report.failed, report
    assert report.refused == (["inputs_embeds"] if name == "best-lm" else []), report  # it needs ids for its n-grams


def changed(change: Callable[..., Any]) -> LagwiseForCausalLM:
    """A model whose forward is changed: ``change(forward, **inputs)``."""
    model = tiny("mega-lm", sharp=True)
    forward = model.forward

    @functools.wraps(forward)
    def faulty(input_ids: Any = None, **inputs: Any) -> Any:
        return change(forward, input_ids=input_ids, **inputs)

    model.forward = faulty
    return model


def without_mask(forward: Any, *, attention_mask: Any = None, position_ids: Any = None, **inputs: Any) -> Any:
    return forward(**inputs)


def without_documents(forward: Any, **inputs: Any) -> Any:
    documents = ("position_ids", "seq_idx", "cu_seq_lens_q", "cu_seq_lens_k")
    return forward(**{name: value for name, value in inputs.items() if name not in documents})


def refusing_states(forward: Any, **inputs: Any) -> Any:
    if inputs.get("use_cache"):
        raise NotImplementedError("no states yet")
    return forward(**inputs)


@pytest.mark.parametrize(
    ("change", "failed", "refused"),
    [
        (without_mask, ("padding on the left", "right padding, continued", "generation, left padding"), ()),
        (without_documents, ("packed documents",), ()),
        (refusing_states, (), ("token by token", "generation", "beams", "a copied cache")),
    ],
)
def test_what_is_wrong_is_found(change: Any, failed: tuple[str, ...], refused: tuple[str, ...]) -> None:
    report = check_model(changed(change), tolerance=1e-6)
    assert {*failed} <= {*report.failed}, report
    assert {*refused} <= {*report.refused}, report
    assert "one row and a batch" not in [*report.failed, *report.refused]


def test_models_in_which_nothing_could_be_found() -> None:
    model = tiny("mega-lm")
    with pytest.raises(ValueError, match="hardly depend on earlier tokens"):
        check_model(model, tolerance=0.1)
    with pytest.raises(ValueError, match=r"call model.eval\(\) first"):
        check_model(model.train())


def test_the_table_of_other_models_is_that_of_the_results(benchmark_script: Callable[[str], ModuleType]) -> None:
    content = json.loads((ROOT / "benchmarks" / "results" / "recurrent-models-cpu.json").read_text())
    script, page, models = benchmark_script("recurrent_models"), ROOT / "docs" / "checking.md", content["results"]
    assert f"transformers {content['transformers']} " in page.read_text()
    assert script.table(models) in page.read_text()
    assert [*script.MODELS, *script.LAGWISE] == [*models]
    assert all(found.startswith(("right", "refused")) for name in script.LAGWISE for found in models[name].values())
