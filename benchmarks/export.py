"""Measure exported files and compiled steps of the recipes' models: sizes, errors and tokens per second.

    python benchmarks/export.py benchmarks/results/export-cpu.json [MODEL ...]

Models have random weights, a vocabulary of bytes, and the recipes' sizes. tnn-lm is also converted to state spaces.
Speeds are for one row and one thread, as medians over turns. The methods, timed in turn, are: the model's linear layers
alone (roughly the lower bound for anything that reads all weights); the eager step; the compiled step; the loop of
`lagwise generate` (temperature 0.8, top_p 0.95) with the compiled step; transformers' `generate` without it; and the
step in onnxruntime. Results are added to an existing results file.
"""

from __future__ import annotations

import json
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import nn

from lagwise.models import LagwiseConfig, LagwiseForCausalLM, StreamingCache
from lagwise.models.export import EXPORTS, ExportedStep
from lagwise.models.generation import Sampling, sampled
from lagwise.models.step import StreamingStep
from lagwise.process import keep_freed_memory
from lagwise.training.recipe import load_recipe
from lagwise_papers.bench.timing import save_results

CONVERTED = "tnn-lm, converted"
MODELS = ("tnn-lm", CONVERTED, "fd-tnn-lm", "ski-tnn-lm", "mega-lm", "tcnca-lm")
CONTEXT, TURN, TURNS = 512, 128, 7


def main(out: Path, names: list[str]) -> None:
    torch.set_num_threads(1)
    command = " ".join(["python benchmarks/export.py", str(out), *names])
    results = json.loads(out.read_text())["results"] if out.exists() else {}
    for name in names or MODELS:
        torch.manual_seed(0)
        config = LagwiseConfig(**load_recipe(name.split(",")[0]).model, vocab_size=258)
        model = LagwiseForCausalLM(config).eval()
        model = model.to_recurrent() if name == CONVERTED else model
        with tempfile.TemporaryDirectory() as folder, torch.no_grad():
            files = exported(model, Path(folder))
            speeds = tokens_per_second(model, Path(folder, "step.onnx"))
        results[name] = {"files": files, **speeds}
        print(name, json.dumps(results[name]), flush=True)
        save_results(out, command, results)


def exported(model: Any, folder: Path) -> dict[str, Any]:
    """Measure sizes, export times and errors of a model's files."""
    files = {}
    for what, export in EXPORTS.items():
        for format in ("onnx", "pt2"):
            path, began = folder / f"{what}.{format}", time.perf_counter()
            figures = export(model, path)
            files[path.name] = {
                "megabytes": path.stat().st_size / 2**20,
                "difference": figures["difference"],
                "checked_tokens": figures["checked_tokens"],
                "seconds": time.perf_counter() - began,
            }
    return files


def tokens_per_second(model: Any, step: Path) -> dict[str, Any]:
    """Measure tokens per second of every method, and the seconds of compilation."""
    lines: list[str] = []
    began = time.perf_counter()
    model.compile_step(report=lines.append)
    compiled = {"compile_seconds": time.perf_counter() - began, "was_cached": not lines}
    ids = torch.randint(258, (1, CONTEXT))
    caches = {name: StreamingCache(len(model.model.layers)) for name in ("step", "compiled step")}
    steps, token, count = dict(model._steps), ids[:, :1].clone(), range(TURN)
    for cache in caches.values():
        model(ids, past_key_values=cache)
    layers = [module for module in model.model.layers.modules() if type(module) is nn.Linear] + [model.lm_head]
    inputs = [torch.randn(1, layer.in_features) for layer in layers]
    run = ExportedStep(step, StreamingStep(model).start(1))
    options: dict[str, Any] = {"do_sample": True, "temperature": 0.8, "top_p": 0.95, "top_k": 0, "pad_token_id": 0}

    def linear() -> None:
        for _ in count:
            for layer, x in zip(layers, inputs, strict=True):
                layer(x)

    def plain() -> None:
        for _ in count:
            model(token, past_key_values=caches["step"], use_cache=True)

    def fast() -> None:
        for _ in count:
            model.next_logits(token, caches["compiled step"])

    def of_transformers() -> None:
        model.generate(ids[:, :1], max_new_tokens=TURN, **options)

    def generated() -> None:
        for _ in sampled(model, ids[0, :1], Sampling(TURN, 0.8, 0.95)):
            pass

    def onnx() -> None:
        for _ in count:
            run(token[0])

    methods: dict[str, tuple[Callable[[], None], bool]] = {
        "linear layers": (linear, False),
        "step": (plain, False),
        "compiled step": (fast, True),
        "generate, transformers": (of_transformers, False),
        "generate, compiled step": (generated, True),
        "onnxruntime": (onnx, False),
    }
    seconds: dict[str, list[float]] = {name: [] for name in methods}
    for turn in range(TURNS + 1):  # the first warms up
        for name, (method, uses_steps) in methods.items():
            model._steps.clear()
            model._steps.update(steps if uses_steps else {})
            began = time.perf_counter()
            method()
            if turn:
                seconds[name].append(time.perf_counter() - began)
    medians = {name: statistics.median(each) for name, each in seconds.items()}
    return {
        **compiled,
        "tokens_per_second": {name: TURN / each for name, each in medians.items()},
        "compiled_step_over_linear_layers": medians["compiled step"] / medians["linear layers"],
        "linear_layers": len(layers),
    }


if __name__ == "__main__":
    keep_freed_memory()
    main(Path(sys.argv[1]), sys.argv[2:])
