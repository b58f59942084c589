"""How often the host waits for a device, in a training step and for a token: for values, and for copies from it."""

from __future__ import annotations

import inspect
import random
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode

from lagwise.kernels import KERNELS
from lagwise.mixers import MIXERS
from lagwise.mixers.timestep_norm import TimestepNorm
from lagwise.models import LagwiseConfig, LagwiseForCausalLM, LagwiseForMaskedLM, StreamingSession
from lagwise.models.generation import Sampling, draw, sampled
from lagwise.training import load_recipe

_READS = {"_local_scalar_dense", "nonzero", "equal", "_unique2", "masked_select", "is_nonzero"}


class Waits(TorchDispatchMode):
    """Notes operations that make the host wait for the device, whose tensors are of the class ``there``, and those in
    float64, which Apple's GPUs have not and others compute slowly."""

    def __init__(self, there: type[Tensor]) -> None:
        super().__init__()
        self.there = there
        self.found: list[str] = []
        self.wide: list[str] = []

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = function._schema.name.split("::")[1]
        out = function(*args, **(kwargs or {}))
        tensors = [x for x in pytree.tree_leaves((args, kwargs)) if isinstance(x, Tensor)]
        if any(isinstance(x, self.there) for x in tensors):
            masks = [x for x in tensors[1:] if x.dtype == torch.bool]
            leaves = isinstance(out, Tensor) and name in ("_to_copy", "copy_") and not isinstance(out, self.there)
            if name in _READS or leaves or (name.startswith("index") and name[5:6] in ("", "_") and masks):
                self.found.append(name)
        results = [x for x in pytree.tree_leaves(out) if isinstance(x, self.there)]
        if any(x.dtype in (torch.float64, torch.complex128) for x in results):
            self.wide.append(name)
        return out


@pytest.fixture
def pretended(pytestconfig: pytest.Config) -> Any:
    """The name and the classes of the device made in Python, whose operations are counted."""
    if pytestconfig.getoption("--device") != "pretended":
        pytest.skip("counts operations on the pretended device")
    import second_device  # which registers the device

    return second_device.NAME, second_device.SecondDevice, second_device._There


def batch(kind: str) -> dict[str, Tensor]:
    place, lengths = torch.arange(64), torch.tensor([64, 50, 30])
    if kind == "plain":
        return {}
    if kind == "right-padded":
        return {"attention_mask": (place < lengths[:, None]).long()}
    if kind == "left-padded":
        return {"attention_mask": (place >= 64 - lengths[:, None]).long()}
    if kind == "packed":
        return {"seq_idx": (place // 20).expand(3, -1).contiguous()}
    if kind == "positions":
        return {"position_ids": (place % 20).expand(3, -1).contiguous()}
    return {"cu_seqlens": torch.tensor([0, 20, 64, 120, 192])}


def model_of(name: str) -> Any:
    model: dict[str, Any] = {**load_recipe(name).model, "hidden_size": 32, "vocab_size": 300}
    if "value_size" in model["block"]:
        model["block"] = {**model["block"], "value_size": 24, "query_size": 8}
    if name != "best-lm":
        model["num_hidden_layers"] = 2
    causal = not name.endswith("mlm")
    return (LagwiseForCausalLM if causal else LagwiseForMaskedLM)(LagwiseConfig(**model, causal=causal))


@pytest.mark.parametrize("kind", ["plain", "right-padded", "left-padded", "packed", "positions", "cu_seqlens"])
@pytest.mark.parametrize("name", ["tnn-lm", "ski-tnn-lm", "mega-lm", "tcnca-lm", "best-lm", "ski-tnn-mlm", "mega-mlm"])
def test_a_step_waits_once_at_most(name: str, kind: str, pretended: Any) -> None:
    NAME, SecondDevice, _There = pretended
    made = model_of(name).train()
    ids = torch.randint(5, 250, (1, 192) if kind == "cu_seqlens" else (3, 64))
    expected = made(ids, labels=ids, **batch(kind)).loss
    with SecondDevice():
        made.to(NAME)
        given = {key: value.to(NAME) for key, value in {"input_ids": ids, "labels": ids, **batch(kind)}.items()}
        with Waits(_There) as waits:
            loss = made(**given).loss
            loss.backward()
        found = loss.cpu()
    assert len(waits.found) <= (kind != "plain"), waits.found
    assert not waits.wide
    assert torch.allclose(found, expected, rtol=1e-4)


_GRIDS = {"grid", "gtu2d", "gfnet", "afno2d"}  # which take images, and mix by mixers of the others


@pytest.mark.parametrize(
    "spec",
    [
        *({"name": "toeplitz", "kernel": {"name": name}} for name in KERNELS),
        *({"name": name} for name in MIXERS if name not in _GRIDS),
        {"name": "ema", "truncation": 10},
        {"name": "timestep_norm"},
    ],
    ids=lambda spec: " ".join(spec.get("kernel", spec)) + " " + spec.get("kernel", spec)["name"],
)
def test_parts_say_whether_they_need_float64(spec: dict[str, Any], pretended: Any) -> None:
    NAME, SecondDevice, _There = pretended
    options = {key: value for key, value in spec.items() if key != "name"}
    made: Any = TimestepNorm if spec["name"] == "timestep_norm" else MIXERS[spec["name"]]
    mixer: Any = made(8, **options, **({"causal": False} if True not in made.directions else {})).train()
    x = torch.randn(2, 40, 8, requires_grad=True)
    with SecondDevice():
        mixer.to(NAME)
        x = x.to(NAME)
        with Waits(_There) as waits:
            mixer(x).sum().backward()
    assert bool(waits.wide) == any(getattr(part, "needs_float64", False) for part in mixer.modules())


def generated(model: LagwiseForCausalLM) -> Callable[[], Any]:
    """The next token of a text of 600."""
    tokens = sampled(model, torch.arange(600) % 250, Sampling(200, 0.8, 0.95))
    return lambda: next(tokens)


def served(model: LagwiseForCausalLM) -> Callable[[], Any]:
    """A turn of a server's batch of four texts, one of them greedy."""
    session = StreamingSession(model)
    for length in (100, 37, 250, 64):
        session.add(torch.arange(length))
    rules = [(Sampling(temperature=t, top_p=0.95), random.Random(0)) for t in (0.8, 0.0, 1.0, 1.0)]
    return lambda: session.step(dict(zip(session.handles, draw(session.logits, rules), strict=True)))


def padded(model: LagwiseForCausalLM) -> Callable[[], Any]:
    """A token of a padded batch, as `generate` asks for it: its mask has the tokens of the prompt too."""
    mask = (torch.arange(20) >= torch.tensor([[0], [12]])).long().to(model.device)
    cache = model(torch.ones_like(mask), attention_mask=mask, use_cache=True).past_key_values
    masks = [mask]

    def step() -> Tensor:
        masks[0] = torch.cat([masks[0], masks[0].new_ones(2, 1)], 1)
        ids = masks[0][:, -1:]
        return model(ids, attention_mask=masks[0], past_key_values=cache, use_cache=True).logits

    return step


@pytest.mark.parametrize("prepare", [generated, served, padded])
@pytest.mark.parametrize("name", ["tnn-lm", "ski-tnn-lm", "mega-lm", "tcnca-lm", "best-lm"])
def test_a_token_waits_once_at_most(
    name: str,
    prepare: Callable[[LagwiseForCausalLM], Callable[[], Any]],
    pretended: Any,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    NAME, SecondDevice, _There = pretended
    for decorated in ("add", "advance", "join", "step"):  # the device has no inference tensors
        monkeypatch.setattr(StreamingSession, decorated, inspect.unwrap(getattr(StreamingSession, decorated)))
    model, read = model_of(name).eval(), _There.tolist
    with SecondDevice(), torch.no_grad():
        step = prepare(model.to(NAME))
        step()
        with Waits(_There) as waits:
            monkeypatch.setattr(_There, "tolist", lambda t: waits.found.append("tolist") or read(t))
            for _ in range(40):
                step()
    assert len(waits.found) <= 40, waits.found[:12]
    assert prepare is not padded or not waits.wide  # texts are sampled in float64 where there is any
