"""Training steps under `torch.compile`: one graph for every length, with the model's own values and gradients."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import pytest
import torch
import torch.nn.functional as F
from torch._dynamo.backends.common import aot_autograd
from torch._functorch import config
from torch._functorch.aot_autograd import make_boxed_func

from lagwise import LagwiseConfig, LagwiseForCausalLM, LagwiseForMaskedLM
from lagwise.kernels.rpe import RPEKernel
from lagwise.ops.attention import chunked_attention
from lagwise.training import load_recipe
from lagwise.training.setup import compile_model

RECIPES = (
    *("tnn-lm", "fd-tnn-lm", "ski-tnn-lm", "mega-lm", "tcnca-lm", "best-lm", "transformer-alibi-lm"),
    *("tnn-mlm", "fd-tnn-mlm", "ski-tnn-mlm", "mega-mlm", "tcn-mlm", "transformer-mlm"),
    *("megalodon-lm", "transformer-learned-lm"),
)
LENGTHS = (300, 450, 350)


def small(recipe: str) -> torch.nn.Module:
    """A recipe's model with one layer of 32 channels."""
    options = dict(load_recipe(recipe).model)
    block = options["block"] = dict(options["block"])
    if "value_size" in block:
        block["value_size"], block["query_size"] = 24, 8
    if "heads" in block.get("token_mixer", {}):
        block["token_mixer"] = {**block["token_mixer"], "heads": 2}
    encoder = recipe.endswith("-mlm")
    options |= {"hidden_size": 32, "num_hidden_layers": 1, "vocab_size": 300, "causal": not encoder}
    torch.manual_seed(0)
    return (LagwiseForMaskedLM if encoder else LagwiseForCausalLM)(LagwiseConfig(**options)).train()


def batch(length: int, kind: str) -> dict[str, torch.Tensor]:
    ids = torch.randint(5, 250, (2, length), generator=torch.Generator().manual_seed(length), device="cpu").to(
        torch.get_default_device()
    )
    if kind == "packed":
        return {"input_ids": ids, "labels": ids, "seq_idx": (torch.arange(length) // 50).expand(2, -1).contiguous()}
    if kind == "plain":
        return {"input_ids": ids, "labels": ids}
    mask = (torch.arange(length) < torch.tensor([[length], [length - 30]])).long()
    return {"input_ids": ids, "labels": ids.masked_fill(mask == 0, -100), "attention_mask": mask}


def step(model: torch.nn.Module, inputs: dict[str, torch.Tensor]) -> list[torch.Tensor]:
    model.zero_grad()
    torch.manual_seed(2)  # for dropout
    loss = model(**inputs, use_cache=False).loss
    loss.backward()
    return [loss.detach(), *(p.grad for p in model.parameters() if p.grad is not None)]


def check(recipe: str, kind: str, *, fullgraph: bool) -> int:
    """Compare steps with those of the model itself. Returns the number of graphs."""
    torch.compiler.reset()
    graphs = []

    def record(graph: torch.fx.GraphModule, inputs: list) -> object:
        graphs.append(graph)
        return graph.forward

    model = small(recipe)
    compiled = torch.compile(model, backend=record, fullgraph=fullgraph)
    for length in LENGTHS:
        actual, expected = step(compiled, batch(length, kind)), step(model, batch(length, kind))
        for a, b in zip(actual, expected, strict=True):
            torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-6 + 1e-5 * float(b.abs().max()))
    return len(graphs)


@pytest.mark.slow
@pytest.mark.parametrize("recipe", RECIPES)
@pytest.mark.parametrize("kind", ["plain", "padded"])
def test_one_graph_serves_every_length(recipe: str, kind: str) -> None:
    assert check(recipe, kind, fullgraph=True) <= 2  # for the first length, and for any


def aot_graphs(run: Callable[..., torch.Tensor], inputs: Iterable[list[torch.Tensor]]) -> int:
    """How many graphs a function has, with guards of its gradient too, after calls with these inputs."""
    torch.compiler.reset()
    torch._dynamo.utils.counters.clear()
    compiled = torch.compile(run, backend="aot_eager", fullgraph=True)
    for tensors in inputs:
        actual = torch.autograd.grad(compiled(*tensors), tensors)
        for a, b in zip(actual, torch.autograd.grad(run(*tensors), tensors), strict=True):
            torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-5)
    return torch._dynamo.utils.counters["stats"]["unique_graphs"]


def test_chunks_have_one_graph_with_and_without_a_rest() -> None:
    """A length of several chunks needs no padding, which is no reason for another graph."""

    def gated(query: torch.Tensor, value: torch.Tensor, gate: torch.Tensor) -> torch.Tensor:
        return (F.silu(gate) * chunked_attention(query, query, value, chunk=16, function="laplace")[:, 0]).sum()

    def inputs(length: int) -> list[torch.Tensor]:
        sizes = (2, 1, length, 4), (2, 1, length, 6), (2, length, 6)
        return [torch.randn(size, requires_grad=True) for size in sizes]

    assert aot_graphs(gated, map(inputs, (30, 45, 48, 64))) == 2


def packed_in(lengths: list[int]) -> dict[str, torch.Tensor]:
    """Two rows of texts of these lengths, of which the second row has one more border."""
    texts = torch.arange(len(lengths)).repeat_interleave(torch.tensor(lengths))
    seq_idx = torch.stack([texts, texts + (torch.arange(len(texts)) > 20).long()])
    return {**batch(len(texts), "plain"), "seq_idx": seq_idx}


PACKED = ([200], [150, 60], [3, 4, 5, 200, 7], [30] * 9, [1, 1, 1, 190], [128, 120], [9, 80, 33, 60, 17])


@pytest.mark.slow
@pytest.mark.parametrize("recipe", RECIPES)
def test_one_graph_serves_texts_packed_in_any_way(recipe: str) -> None:
    """Layers get texts in as many groups whatever a row holds, and none of a size that graphs take for a constant."""
    torch.compiler.reset()
    torch._dynamo.utils.counters.clear()
    model, compiled = small(recipe), small(recipe)
    for layer in compiled.model.layers:
        layer.compile(backend="aot_eager", fullgraph=True)
    for lengths in PACKED:
        actual, expected = step(compiled, packed_in(lengths)), step(model, packed_in(lengths))
        for a, b in zip(actual, expected, strict=True):
            torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-6 + 1e-5 * float(b.abs().max()))
    assert torch._dynamo.utils.counters["stats"]["unique_graphs"] <= 2


def test_one_graph_of_a_whole_model_is_refused_for_packed_rows() -> None:
    with pytest.raises(torch._dynamo.exc.Unsupported, match="depend on the values of seq_idx: leave out fullgraph"):
        check("tnn-lm", "packed", fullgraph=True)


def test_gradients_have_the_precision_of_their_operations() -> None:
    """Kernels leave autocast, and so does their part of a compiled backward pass."""
    dtypes = []

    def record(graph: torch.fx.GraphModule, _: list) -> object:
        products = [target for target in graph.graph.nodes if target.target is torch.ops.aten.mm.default]
        dtypes.extend(node.meta["val"].dtype for node in products)
        return make_boxed_func(graph.forward)

    torch.compiler.reset()
    with config.patch(backward_pass_autocast="same_as_forward"):
        block = {"name": "prenorm", "token_mixer": {"name": "toeplitz", "kernel": {"name": "rpe"}}}
        model = LagwiseForCausalLM(LagwiseConfig(vocab_size=10, hidden_size=8, num_hidden_layers=1, block=block))
        compile_model(model)
        kernel = next(each for each in model.modules() if isinstance(each, RPEKernel))
        taps = torch.compile(kernel.taps, backend=aot_autograd(fw_compiler=record), fullgraph=True)
        with torch.autocast(torch.get_default_device().type, torch.bfloat16):
            loss = taps(40).square().sum()
        loss.backward()
    assert set(dtypes) == {torch.float32}
