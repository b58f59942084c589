"""Time training steps over their matrix products alone, and the long convolution in C over PyTorch's FFTs.

    python benchmarks/step_over_products.py [--out benchmarks/results/step-over-products-cpu.json] [--repeats 7]

A step is the forward and backward pass and AdamW, in float32 or with autocast to bfloat16. Its matrix products are
recorded, with sizes, strides and dtypes, and the same products alone are timed in turn with it; those inside fused
attention count as two batched products forward and four backward. Convolutions are timed forward and backward. All of
it uses one thread and one process, and seconds of processor time, since other processes may share the machine. Losses
and gradients must equal those without the loops in C, or nothing is timed.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest import mock

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from lagwise.models import LagwiseConfig, LagwiseForCausalLM, LagwiseForMaskedLM
from lagwise.ops import native, toeplitz_product
from lagwise.process import keep_freed_memory
from lagwise.training import load_recipe
from lagwise.training.optimizer import make_optimizer, sparse_tables
from lagwise.training.recipe import TrainingOptions
from lagwise_papers.bench.timing import interleaved, save_results

# recipe, changed options, batch, length, and at most how many times the time of its products: bfloat16, float32
STEPS: list[tuple[str, dict[str, Any], int, int, tuple[float, float]]] = [
    ("tnn-lm", {"hidden_size": 512}, 8, 512, (1.9, 1.25)),
    ("tnn-lm", {"hidden_size": 512}, 2, 2048, (1.9, 1.25)),
    ("tnn-mlm", {"hidden_size": 512}, 8, 512, (2.0, 1.3)),
    ("mega-lm", {"hidden_size": 512}, 8, 512, (2.4, 1.4)),
    ("best-lm", {}, 4, 512, (4.5, 1.35)),
]
# batch, length, channels, taps, and at least how many times as fast
CONVOLUTIONS = [
    (8, 512, 512, 512, 3.0),
    (4, 2048, 512, 2048, 3.0),
    (2, 8192, 512, 8192, 2.5),
    (2, 8192, 512, 1833, 2.5),
    (1, 32768, 512, 1833, 2.5),
]
DTYPES = (torch.bfloat16, torch.float32)
TOLERANCE = {torch.bfloat16: 5e-2, torch.float32: 1e-3}  # of the largest value, in gradients
_ATTENTION = "_scaled_dot_product_flash_attention_for_cpu"


@contextmanager
def by_fft() -> Iterator[None]:
    """Compute long convolutions by PyTorch's FFTs, and the rest as it is."""
    with mock.patch.object(native, "serves", return_value=False):
        yield


class Recorder(TorchDispatchMode):
    """The matrix products of the operations inside, as functions that repeat them."""

    def __init__(self) -> None:
        super().__init__()
        self.products: list[Callable[[], Any]] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: tuple = (), kwargs: dict | None = None) -> Any:
        name = func.overloadpacket.__name__
        if name in ("mm", "addmm", "bmm", "baddbmm"):
            inputs = [like(t) if isinstance(t, Tensor) else t for t in args]
            self.products.append(lambda: func(*inputs, **(kwargs or {})))
        elif name.startswith(_ATTENTION):
            first = 1 if name.endswith("backward") else 0  # after the gradient
            q, k, v = (t.flatten(0, 1) for t in args[first : first + 3])
            weights = q.new_empty(len(q), q.shape[1], k.shape[1])
            pairs = [(q, k.mT), (weights, v)]
            if first:
                pairs = [(q, v.mT), (weights.mT, q), (weights, k), (weights.mT, q)]
            for pair in pairs:
                a, b = map(like, pair)
                self.products.append(lambda a=a, b=b: torch.bmm(a, b))
        return func(*args, **(kwargs or {}))


def like(t: Tensor) -> Tensor:
    """Draw random numbers where t has them in memory."""
    return torch.empty_strided(t.shape, t.stride(), dtype=t.dtype).normal_()


def step_of(model: nn.Module, inputs: dict[str, Tensor], dtype: torch.dtype) -> Callable[[], None]:
    options = TrainingOptions(learning_rate=1e-9)
    optimizer = make_optimizer(model, options)

    def step() -> None:
        with sparse_tables(model, options):
            loss_of(model, inputs, dtype).backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)

    return step


def loss_of(model: nn.Module, inputs: dict[str, Tensor], dtype: torch.dtype) -> Tensor:
    with torch.autocast("cpu", torch.bfloat16, enabled=dtype == torch.bfloat16):
        return model(**inputs).loss


def check(names: list[str], actual: list[Tensor], expected: list[Tensor], dtype: torch.dtype) -> None:
    for name, a, b in zip(names, actual, expected, strict=True):
        error = float((a.float() - b.float()).abs().max() / b.float().abs().max().clamp(min=1e-12))
        if not error <= TOLERANCE[dtype]:
            raise SystemExit(f"{name} is off by {error:.1e} of its largest value in {dtype}")


def time_step(
    recipe: str, options: dict[str, Any], batch: int, length: int, dtype: torch.dtype, repeats: int
) -> dict[str, Any]:
    torch.manual_seed(0)
    spec = load_recipe(recipe)
    masked = spec.task.get("name") == "masked_language_modelling"
    kind, vocabulary = (LagwiseForMaskedLM, 8192) if masked else (LagwiseForCausalLM, 257)
    config = LagwiseConfig(vocab_size=vocabulary, causal=not masked, **{**spec.model, **options})
    model = kind(config).train()
    ids = torch.randint(0, min(vocabulary, 256), (batch, length))
    inputs = {"input_ids": ids, "labels": ids.where(torch.rand(batch, length) < 0.15, -100) if masked else ids}
    parameters = dict(model.named_parameters())

    def results() -> list[Tensor]:
        loss = loss_of(model, inputs, dtype)
        return [loss.detach(), *torch.autograd.grad(loss, list(parameters.values()))]

    actual = results()
    with by_fft():
        check(["loss", *parameters], actual, results(), dtype)
    step = step_of(model, inputs, dtype)
    with Recorder() as recorder:
        step()

    def products() -> None:
        for product in recorder.products:
            product()

    def before() -> None:
        with by_fft():
            step()

    methods = {"step": step, "products": products, "step by FFT": before}
    timings = interleaved(methods, repeats=repeats, clock=time.process_time)
    return {
        "recipe": recipe,
        **options,
        "batch": batch,
        "length": length,
        "dtype": str(dtype).removeprefix("torch."),
        "seconds": timings,
        "step over products": timings["step"].median / timings["products"].median,
        "before": timings["step by FFT"].median / timings["products"].median,
    }


def time_convolution(
    batch: int, length: int, channels: int, n_taps: int, dtype: torch.dtype, repeats: int
) -> dict[str, Any]:
    torch.manual_seed(0)
    x, grad = torch.randn(2, batch, length, channels).to(dtype)
    taps = torch.randn(channels, n_taps) * 0.99 ** torch.arange(n_taps)
    x.requires_grad_(), taps.requires_grad_()

    def both() -> list[Tensor]:
        y = toeplitz_product(x, taps)
        return [y.detach(), *torch.autograd.grad(y, (x, taps), grad)]

    def before() -> list[Tensor]:
        with by_fft():
            return both()

    check(["y", "gradient of x", "gradient of taps"], both(), before(), dtype)
    timings = interleaved({"loops": both, "FFT": before}, repeats=repeats, clock=time.process_time)
    return {
        "batch": batch,
        "length": length,
        "channels": channels,
        "taps": n_taps,
        "dtype": str(dtype).removeprefix("torch."),
        "seconds": timings,
        "times as fast": timings["FFT"].median / timings["loops"].median,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("benchmarks/results/step-over-products-cpu.json"))
    parser.add_argument("--repeats", type=int, default=7)
    args = parser.parse_args()
    torch.set_num_threads(1)
    keep_freed_memory()
    if not native.available():
        raise SystemExit("the loops in C are not available here: install a C compiler")
    results: dict[str, list[dict[str, Any]]] = {"convolutions": [], "steps": []}

    def keep(kind: str, row: dict[str, Any]) -> None:  # after every row, because a run takes many minutes
        results[kind].append(row)
        save_results(args.out, f"python benchmarks/step_over_products.py --repeats {args.repeats}", results)

    for batch, length, channels, n_taps, goal in CONVOLUTIONS:
        case = f"{batch} x {length} x {channels} with {n_taps} taps"
        for dtype in DTYPES:
            row = time_convolution(batch, length, channels, n_taps, dtype, args.repeats) | {"goal": goal}
            print(f"{case} in {row['dtype']}: {row['times as fast']:.2f} times as fast, goal {goal}", flush=True)
            keep("convolutions", row)
    for recipe, options, batch, length, goals in STEPS:
        for dtype, goal in zip(DTYPES, goals, strict=True):
            row = time_step(recipe, options, batch, length, dtype, args.repeats) | {"goal": goal}
            ratios = f"{row['step over products']:.2f} times its products (goal {goal}), by FFT {row['before']:.2f}"
            print(f"{recipe} {options} {batch} x {length} in {row['dtype']}: {ratios}", flush=True)
            keep("steps", row)


if __name__ == "__main__":
    main()
