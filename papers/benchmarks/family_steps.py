"""Time training steps of every mixer and every kernel, relative to TNN.

    python papers/benchmarks/family_steps.py OUT.json [--channels 256] [--lengths 512,4096] [--tokens 4096]
        [--direction causal] [--names lru,s5,...] [--repeats 7] [--no-memory]

A method is a stack of pre-norm blocks (`--layers`, 2) with a token mixer and a GLU as wide as the model, as in the
recipe tnn-lm. Kernels are used in its gated Toeplitz unit. MEGA and TCNCA have their own blocks, as in their recipes.
A step is a forward and backward pass in float32 on one thread, with ``tokens / length`` sequences per batch. Methods
are timed in turn with TNN. Mixers without the chosen direction use the other one, and so does their TNN baseline.

Before timing, every mixer of lagwise is compared with the dense reference of its tests (mixers of other packages, which
`register_mixer` or an entry point adds, have none), every stack is compared with itself in float64, and outputs of
causal stacks must not depend on later tokens. Each
result is written to the file at once and is not measured again. The setting of TNN table 5, single sequences through
two layers of 64 channels, is

    --channels 64 --lengths 1024,2048,3072,4096,5120 --tokens 1 --direction two-sided
"""

from __future__ import annotations

import argparse
import copy
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from lagwise.blocks import BLOCKS, PreNormBlock
from lagwise.files import one_line
from lagwise.kernels import KERNELS
from lagwise.mixers import MIXERS, Mixer
from lagwise.ops import Layout
from lagwise.process import keep_freed_memory
from lagwise.tables import build, known
from lagwise.training import load_recipe
from lagwise_papers.bench.harness import memory_of
from lagwise_papers.bench.timing import interleaved, save_results, training_step

ROOT = Path(__file__).parents[2]
TESTS = [str(ROOT / folder) for folder in ("papers/tests", "tests", "tests/fuzz")]
BASE = "tnn"
NETWORK = {"hidden": 32, "layers": 3}
TOLERANCE = 1e-3  # relative to the largest value
_REFERENCE, _EXACT = 10, 1024  # maximum height and width of the references' inputs; maximum tokens in float64


def token_mixers(length: int) -> dict[str, dict[str, Any]]:
    """Return specs by name, for sequences of a length."""

    def unit(kernel: dict[str, Any], **options: Any) -> dict[str, Any]:
        return {"name": "gtu", "expansion": 1, "kernel": kernel, **options}

    kernels: dict[str, dict[str, Any]] = {
        "rpe": NETWORK,
        "frequency": NETWORK,
        "free": {"max_length": length},
    }
    height, width = grid(length)
    options: dict[str, dict[str, Any]] = {
        "gmlp": {"max_length": length},
        "gfnet": {"height": height, "width": width},
        "gtu2d": {"expansion": 1, "kernel": {"name": "rpe", **NETWORK}},
        "toeplitz_heads": {"kernel": {"name": "free", "max_length": length}},
    }
    return {
        BASE: unit({"name": "rpe", **NETWORK}),
        **{f"kernel {name}": unit({"name": name, **kernels.get(name, {})}) for name in KERNELS if name != "rpe"},
        "ski-tnn": unit({"name": "warped"}, engine="ski"),
        **{name: {"name": name, **options.get(name, {})} for name in MIXERS if name not in ("gtu", *_SEVERAL)},
        **{
            f"linear_attention {kind}": {"name": "linear_attention", "feature_map": kind, **more}
            for kind, more in (("elu", {}), ("cosformer", {"span": length}), ("favor", {}))
        },
        **{
            f"synthesizer {form}": {"name": "synthesizer", "form": form, "max_length": length}
            for form in ("dense", "random")
        },
    }


_SEVERAL = ("linear_attention", "synthesizer")
_BLOCKS = ("mega", "tcnca")


def names() -> list[str]:
    return [*token_mixers(512), *_BLOCKS]


def grid(length: int) -> tuple[int, int]:
    """Find the most nearly equal height and width whose product is the length."""
    height = next(n for n in range(int(length**0.5), 0, -1) if length % n == 0)
    return height, length // height


class Stack(nn.Module):
    """A stack of blocks over sequences, or over grids with as many positions."""

    def __init__(self, blocks: list[nn.Module], *, needs_grid: bool):
        super().__init__()
        self.blocks, self.needs_grid = nn.ModuleList(blocks), needs_grid

    def forward(self, x: Tensor) -> Tensor:
        layout = Layout(grid=grid(x.shape[1]) if self.needs_grid else None)
        for block in self.blocks:
            x = block(x, layout=layout)
        return x


def directions(name: str) -> tuple[bool, ...]:
    if name in _BLOCKS:
        return (True, False)
    return MIXERS[token_mixers(512)[name]["name"]].directions


def stack(name: str, causal: bool, layers: int, channels: int, length: int) -> Stack:
    """Build a method's stack."""
    if name in _BLOCKS:
        spec = {**load_recipe(f"{name}-lm").model["block"], "value_size": max(1, 3 * channels // 4)}
        return Stack(
            [build(BLOCKS, spec, channels, what="block", causal=causal) for _ in range(layers)], needs_grid=False
        )
    mixer = token_mixers(length)[name]
    block = {"token_mixer": mixer, "channel_mixer": {"name": "glu", "expansion": 1}}
    blocks = [PreNormBlock(channels, causal=causal, **block) for _ in range(layers)]
    return Stack([*blocks], needs_grid=MIXERS[mixer["name"]].needs_grid)


def check(name: str, model: Stack, channels: int, length: int, causal: bool) -> float:
    """Compute the relative error. ValueError if it is too large, or if a causal stack depends on later tokens."""
    error = 0.0
    x = torch.randn(1, length, channels)
    for mixer in [m for m in model.modules() if isinstance(m, Mixer) and type(m).__module__.startswith("lagwise.")]:
        error = max(error, formula_error(mixer, length))
    short = x[:, : min(length, _EXACT)]
    weight = torch.randn_like(short)
    expected = outputs(copy.deepcopy(model).double(), short.double(), weight.double())
    error = max(error, *map(relative, outputs(model, short, weight), expected))
    if causal:
        error = max(error, future_error(model, x))
    if not error <= TOLERANCE:
        raise ValueError(f"off by {error:.1e} of the largest value")
    return error


@torch.no_grad()
def formula_error(mixer: Mixer, length: int, dtype: torch.dtype = torch.float32) -> float:
    """Compute the relative error of a mixer with respect to its reference in float64, on at most 100 tokens."""
    size = min(grid(length)[0], _REFERENCE), min(grid(length)[1], _REFERENCE)
    signal = torch.randn(1, size[0] * size[1], mixer.channels, dtype=dtype)
    ours = mixer(signal, layout=Layout(grid=size if mixer.needs_grid else None))[0]
    exact = signal[0].double().unflatten(0, size) if mixer.needs_grid else signal[0].double()
    return relative(ours, reference(copy.deepcopy(mixer).double(), exact).reshape(ours.shape))


@torch.no_grad()
def future_error(layer: nn.Module, x: Tensor) -> float:
    """Compute the relative change of the first half of the outputs if the second half of x changes."""
    half = x.shape[1] // 2
    changed = x.clone()
    changed[:, half:] += 1
    return relative(layer(changed)[:, :half], layer(x)[:, :half])


def outputs(model: Stack, x: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
    """A stack's output, and the gradient of its weighted sum with respect to x."""
    x = x.detach().requires_grad_()
    y = model(x)
    return y, torch.autograd.grad(y, x, weight)[0]


def reference(mixer: Mixer, x: Tensor) -> Tensor:
    """Compute the output of the tests' reference for a mixer."""
    sys.path[:0] = [path for path in TESTS if path not in sys.path]
    from references import reference as of_the_tests

    return of_the_tests(mixer, x)


def relative(ours: Tensor, exact: Tensor) -> float:
    error = (ours.detach() - exact.detach()).abs().max() / exact.detach().abs().max().clamp(min=1e-30)
    return float(error) if error.isfinite() else float("inf")


def steps(name: str, causal: bool, layers: int, channels: int, length: int, batch: int) -> Iterator[Any]:
    """A small step and the step to measure, for `memory_of`."""
    few, small = 16, 64
    yield training_step(stack(name, causal, 1, few, small), torch.randn(1, small, few))
    yield training_step(stack(name, causal, layers, channels, length), torch.randn(batch, length, channels))


def measured(name: str, causal: bool, args: argparse.Namespace, length: int, batch: int) -> dict[str, Any]:
    """Measure the results of a row; ValueError if an output is wrong."""
    torch.manual_seed(0)
    model = stack(name, causal, args.layers, args.channels, length)
    error = check(name, model, args.channels, length, causal)
    x = torch.randn(batch, length, args.channels)
    each = {BASE: stack(BASE, causal, args.layers, args.channels, length), name: model}
    seconds = interleaved({n: training_step(m, x) for n, m in each.items()}, repeats=args.repeats, warmup=1)
    row = {"parameters": sum(p.numel() for p in model.parameters()), "error": error}
    row |= {"step": seconds[name], "tnn": seconds[BASE]}
    if args.memory:
        arguments = (name, causal, args.layers, args.channels, length, batch)
        row["memory"] = memory_of(steps, *arguments, threads=args.threads)
    return row


def main(args: argparse.Namespace) -> None:
    torch.set_num_threads(args.threads)
    rows = json.loads(args.out.read_text())["results"]["rows"] if args.out.is_file() else []
    selected = [known(name, names(), "name") for name in args.names.split(",")] if args.names else names()
    for length in map(int, args.lengths.split(",")):
        batch = max(1, args.tokens // length)
        for name in selected:
            causal = args.direction == "causal" if len(directions(name)) == 2 else directions(name)[0]
            key = {"name": name, "direction": "causal" if causal else "two-sided", "length": length, "batch": batch}
            key |= {"channels": args.channels, "layers": args.layers, "threads": args.threads}
            if any(key.items() <= row.items() for row in rows):
                continue
            try:
                row = {**key, **measured(name, causal, args, length, batch)}
            except ImportError as error:
                print(f"{name}: {error}", file=sys.stderr)
                continue
            except (ValueError, RuntimeError, AssertionError) as error:  # as layers of other packages raise them
                row = {**key, "refused": one_line(error)}
            result = f"{1 / row['step'].median:.2f} steps/s" if "step" in row else f"refused: {row['refused']}"
            print(f"{name}, {key['direction']}, {length} tokens: {result}", flush=True)
            rows.append(row)
            save_results(args.out, " ".join(["python", *sys.argv]), {"rows": rows})


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("out", type=Path, help="results file; results are added to it")
    parser.add_argument("--channels", type=int, default=256, help="channels of the model (256)")
    parser.add_argument("--layers", type=int, default=2, help="blocks of the stack (2)")
    parser.add_argument("--lengths", default="512,4096", help="tokens per sequence (512,4096)")
    parser.add_argument("--tokens", type=int, default=4096, help="tokens per batch, at least one sequence (4096)")
    parser.add_argument("--direction", choices=("causal", "two-sided"), default="causal", help="if there are both")
    parser.add_argument("--names", help="methods, separated by commas (all)")
    parser.add_argument("--repeats", type=int, default=7, help="timed steps (7)")
    parser.add_argument("--threads", type=int, default=1, help="threads of torch (1)")
    parser.add_argument("--no-memory", dest="memory", action="store_false", help="do not measure memory")
    keep_freed_memory()
    main(parser.parse_args())
