"""`training.compile`: the training of the model itself, through graphs."""

from __future__ import annotations

import dataclasses
import functools
import json
import os
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from functorch.compile import make_boxed_func
from processes import run_together
from run_results import assert_equal_runs
from safetensors.torch import load_file
from torch import Tensor
from torch._dynamo.backends.debugging import aot_eager
from torch._dynamo.utils import counters

from lagwise.models import LagwiseConfig, LagwiseForCausalLM, load_model
from lagwise.training import Recipe, check_recipe, resume, train
from lagwise.training import setup as compilation_module
from lagwise.training.recipe import REDUCE_OVERHEAD, TrainingOptions
from lagwise.training.setup import chosen_compilation

TOLERANCE = 1e-4  # of a loss in float32, relative, after a few steps


class Graphs(list):
    """A backend of `torch.compile` that runs graphs and their gradients operation by operation, and keeps whether they
    train."""

    def __call__(self, graph: torch.fx.GraphModule, inputs: Sequence[Any]) -> Callable[..., Any]:
        self.append(torch.is_grad_enabled())
        return aot_eager(graph, inputs)


class Overwritten(list):
    """A backend in whose graphs a step overwrites outputs and gradients of the step before, as CUDA graphs do. Keeps
    the mode of each graph."""

    def __init__(self) -> None:
        self.results: list[Tensor] = []

    def __call__(self, graph: torch.fx.GraphModule, inputs: Sequence[Any], mode: str) -> Callable[..., Any]:
        self.append(mode)
        return aot_eager(graph, inputs, fw_compiler=self.forward, bw_compiler=self.backward)

    def forward(self, graph: torch.fx.GraphModule, inputs: Sequence[Any]) -> Callable[..., Any]:
        def run(*given: Any) -> Any:
            for result in self.results:
                result.detach().fill_(torch.nan)
            self.results.clear()
            return self._kept(graph(*given), given)

        return make_boxed_func(run)

    def backward(self, graph: torch.fx.GraphModule, inputs: Sequence[Any]) -> Callable[..., Any]:
        return make_boxed_func(lambda *given: self._kept(graph(*given), given))

    def _kept(self, results: Any, given: Sequence[Any]) -> Any:
        outside = {each.untyped_storage().data_ptr() for each in given if isinstance(each, Tensor)}
        made = (each for each in results if isinstance(each, Tensor) and each.is_floating_point())
        self.results += [each for each in made if each.untyped_storage().data_ptr() not in outside]
        return results


@pytest.fixture
def on_card(monkeypatch: pytest.MonkeyPatch) -> None:
    """The checks of a machine with a GPU; the training stays on the CPU."""
    monkeypatch.setattr(compilation_module, "default_device", lambda: torch.device("cuda"))
    monkeypatch.setattr(compilation_module, "_lacking", lambda device: None)


@pytest.fixture
def graphs(monkeypatch: pytest.MonkeyPatch) -> Graphs:
    found = Graphs()
    torch.compiler.reset()
    monkeypatch.setattr(torch, "compile", functools.partial(torch.compile, backend=found))
    monkeypatch.setattr(compilation_module, "find_cxx", lambda: "g++")
    return found


def logged(run: Path, name: str) -> list[float]:
    lines = (json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines())
    return [line[name] for line in lines if name in line]


def changed(recipe: Recipe, **options: Any) -> Recipe:
    return dataclasses.replace(recipe, training=dataclasses.replace(recipe.training, **options))


def check(recipe: Recipe, folder: Path, how: bool | str = True) -> None:
    """Train with and without graphs, and compare."""
    for name, options in (("plain", {}), ("compiled", {"compile": how})):
        train(changed(recipe, **options), folder / name, progress=False)
    for name in ("loss", "eval_loss"):
        found, expected = (logged(folder / run, name) for run in ("compiled", "plain"))
        assert found == pytest.approx(expected, rel=TOLERANCE)
        assert len(found) > 1
    compiled, plain = (load_file(folder / run / "model.safetensors") for run in ("compiled", "plain"))
    assert compiled.keys() == plain.keys()


def test_losses_are_those_of_the_model(tiny_recipe: Recipe, tmp_path: Path, graphs: Graphs) -> None:
    check(tiny_recipe, tmp_path)
    assert list(graphs) == [True]  # one for the training, none for evaluations
    saved = json.loads((tmp_path / "compiled" / "run.json").read_text())
    assert saved["asked"]["training"]["compile"] is True
    model, _ = load_model(tmp_path / "compiled")
    assert model.config.hidden_size == tiny_recipe.model["hidden_size"]


def test_layers_share_a_graph(tiny_recipe: Recipe, graphs: Graphs) -> None:
    """Also for rows with so much padding that eager layers get their real tokens alone."""
    torch.manual_seed(0)
    model = LagwiseForCausalLM(LagwiseConfig(**{**tiny_recipe.model, "vocab_size": 257, "num_hidden_layers": 3}))
    ids = torch.randint(3, 257, (4, 20))
    mask = torch.arange(20) < torch.tensor([20, 3, 7, 20])[:, None]
    given = {"input_ids": ids, "labels": ids.masked_fill(~mask, -100), "attention_mask": mask.long()}
    losses, gradients = [], []
    for compiled in (False, True):
        if compiled:
            compilation_module.compile_model(model)
        model.zero_grad()
        losses.append(model(**given, use_cache=False).loss)
        losses[-1].backward()
        gradients.append([p.grad for p in model.parameters() if p.grad is not None])
    torch.testing.assert_close(*losses)
    torch.testing.assert_close(*gradients, rtol=1e-4, atol=1e-6)
    assert list(graphs) == [True]


@pytest.mark.slow
def test_resuming_is_exact(tiny_recipe: Recipe, tmp_path: Path, graphs: Graphs) -> None:
    run, part = tmp_path / "run", tmp_path / "part"
    train(changed(tiny_recipe, compile=True), run, progress=False)
    shutil.copytree(run, part)
    for name in ("config.json", "model.safetensors"):
        (part / name).unlink()
    shutil.rmtree(part / "checkpoint-6")
    resume(part, progress=False)
    whole, found = (load_file(folder / "model.safetensors") for folder in (run, part))
    assert all(torch.equal(found[name], weight) for name, weight in whole.items())


@pytest.mark.slow
@pytest.mark.parametrize("options", [{}, {"gradient_checkpointing": True, "clip": 0.1}], ids=str)
def test_no_step_needs_what_the_next_overwrites(
    options: dict[str, Any], tiny_recipe: Recipe, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, on_card: None
) -> None:
    graphs, begun = Overwritten(), []
    torch.compiler.reset()
    monkeypatch.setattr(torch, "compile", functools.partial(torch.compile, backend=graphs))
    monkeypatch.setattr(torch.compiler, "cudagraph_mark_step_begin", lambda: begun.append(True))
    check(changed(tiny_recipe, **options), tmp_path, "reduce-overhead")
    assert list(graphs) == ["reduce-overhead"]
    assert len(begun) == tiny_recipe.training.steps


@pytest.mark.slow
@pytest.mark.real_device
@pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no CUDA device")
@pytest.mark.parametrize(
    "mixer", [{"kernel": {"name": "rpe"}}, {"kernel": {"name": "warped"}, "engine": "ski"}], ids=str
)
def test_cuda_graphs(mixer: dict[str, Any], tiny_recipe: Recipe, tmp_path: Path) -> None:
    """Also where an operator remembers tables, which may not be part of a graph's memory."""
    torch.compiler.reset()
    counters.clear()
    block = {"name": "prenorm", "token_mixer": {"name": "toeplitz", **mixer}, "channel_mixer": {"name": "glu"}}
    check(dataclasses.replace(tiny_recipe, model={**tiny_recipe.model, "block": block}), tmp_path, "reduce-overhead")
    assert not counters["inductor"]["cudagraph_skips"]


@pytest.mark.parametrize(
    ("device", "options", "words"),
    [
        ("cpu", {}, r"`compile=reduce-overhead` needs an NVIDIA GPU, which is not here"),
        ("cuda", {"accumulate": 2}, "does not go with `accumulate`, got 2"),
        ("cuda", {"world": "2"}, "is for one process, got 2"),
    ],
    ids=str,
)
def test_where_a_step_cannot_be_cuda_graphs(
    tiny_recipe: Recipe,
    monkeypatch: pytest.MonkeyPatch,
    on_card: None,
    device: str,
    options: dict[str, Any],
    words: str,
) -> None:
    monkeypatch.setattr(compilation_module, "default_device", lambda: torch.device(device))
    monkeypatch.setenv("WORLD_SIZE", options.pop("world", "1"))
    with pytest.raises(ValueError, match=words):
        check_recipe(changed(tiny_recipe, **{"compile": "reduce-overhead", **options}))


def train_eagerly_compiled(recipe: Recipe, out: Path) -> None:
    """One of several processes, which all go through graphs."""
    found = Graphs()
    setattr(torch, "compile", functools.partial(torch.compile, backend=found))  # noqa: B010 (its type is another)
    compilation_module.find_cxx = lambda: "g++"
    train(recipe, out, progress=False)
    assert found


@pytest.mark.slow
@pytest.mark.skipif(os.name != "posix", reason="needs fork")
@pytest.mark.parametrize("options", [{}, {"sequence_parallel": 2}], ids=str)
def test_two_processes(options: dict[str, Any], tiny_recipe: Recipe, tmp_path: Path) -> None:
    recipe = changed(tiny_recipe, compile=True, accumulate=2, **options)
    one = train(changed(tiny_recipe, accumulate=2), tmp_path / "one", progress=False)
    assert run_together(train_eagerly_compiled, recipe, tmp_path / "two") == [0, 0]
    assert_equal_runs(tmp_path / "two", one)


@pytest.mark.slow
@pytest.mark.skipif(compilation_module.find_cxx() is None, reason="there is no C++ compiler")
def test_inductor(tiny_recipe: Recipe, tmp_path: Path) -> None:
    torch.compiler.reset()
    check(tiny_recipe, tmp_path)


@pytest.mark.parametrize(
    ("device", "missing", "words"),
    [
        ("cpu", "find_cxx", r"needs a C\+\+ compiler, which is not here: install g\+\+ or set CXX"),
        ("cuda", "find_compiler", "needs a C compiler, which is not here: install gcc or set CC"),
        ("cpu", "has_python_headers", "needs Python's headers, which are not here: install python3-dev"),
    ],
)
def test_a_machine_that_cannot_compile(
    tiny_recipe: Recipe, monkeypatch: pytest.MonkeyPatch, device: str, missing: str, words: str
) -> None:
    monkeypatch.setattr(compilation_module, "find_cxx", lambda: "g++")
    monkeypatch.setattr(compilation_module, "find_compiler", lambda: ["cc"])
    monkeypatch.setattr(compilation_module, "has_python_headers", lambda: True)
    monkeypatch.setattr(compilation_module, "default_device", lambda: torch.device(device))
    monkeypatch.setattr(compilation_module.importlib.util, "find_spec", lambda name: object())
    monkeypatch.setattr(compilation_module, missing, lambda: None)
    with pytest.raises(ValueError, match=words):
        check_recipe(changed(tiny_recipe, compile=True))


@pytest.mark.cpu
def test_graphs_are_the_default_of_long_trainings_on_one_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    options = TrainingOptions(steps=5000)
    assert chosen_compilation(options, True) is False  # on a CPU
    monkeypatch.setattr(compilation_module, "default_device", lambda: torch.device("cuda"))
    monkeypatch.setattr(compilation_module, "_lacking", lambda device: None)
    assert chosen_compilation(options, True) is False  # another maker's
    monkeypatch.setattr(torch.version, "cuda", "13.0")
    assert chosen_compilation(options, True) == REDUCE_OVERHEAD
    others = ({"steps": 4999}, {"accumulate": 2}, {"precision": "float16"}, {"gradient_checkpointing": True})
    for other in (*others, {"compile": False}):
        assert chosen_compilation(dataclasses.replace(options, **other), True) is False
    assert chosen_compilation(options, False) is False
    monkeypatch.setattr(compilation_module, "_lacking", lambda device: "Triton")
    assert chosen_compilation(options, True) is False
