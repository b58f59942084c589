"""Speed and memory of the Toeplitz operator with different kernels and engines, against each other and peers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from lagwise.mixers import ToeplitzMixer
from lagwise.mixers.ski import CausalSKI, TwoSidedSKI
from lagwise.ops import toeplitz_matrix
from lagwise.ops.ski import causal_ski_matrix, ski_reference, split_kernel
from lagwise.progress import progress_bar
from lagwise_papers.bench.harness import Comparison, Factory, check_layer, check_matrix
from lagwise_papers.bench.plots import speed_over_length
from lagwise_papers.bench.timing import Timing
from lagwise_papers.bench.toeplitz import literal

if TYPE_CHECKING:
    from matplotlib.figure import Figure

BASE = "tnn"
LITERAL = "literal tnn"
# Kernels as published: 6 layers of 64 (TNN table 13; SKI-TNN §5.1), as many frequencies as tokens (SKI-TNN alg. 2),
# rank 64 and 32 taps (SKI-TNN §5.2). Without decay (λ = 1) a kernel spans the whole signal; with decay it is truncated,
# which makes the exact engines linear too.
METHODS: dict[bool, dict[str, dict[str, Any]]] = {
    True: {
        BASE: {"kernel": {"name": "rpe"}},
        "tnn λ=1": {"kernel": {"name": "rpe", "decay": 1.0}},
        "tnn λ=1 ski": {"kernel": {"name": "rpe", "decay": 1.0}, "engine": "ski"},
        "tnn λ=1 ski 1e-3": {"kernel": {"name": "rpe", "decay": 1.0}, "engine": {"name": "ski", "tolerance": 1e-3}},
        "fd-tnn": {"kernel": {"name": "frequency"}},
        "fd-tnn 256": {"kernel": {"name": "frequency", "grid": 256}},
        "ski-tnn": {"kernel": {"name": "warped"}, "engine": "ski"},
    },
    False: {
        BASE: {"kernel": {"name": "rpe"}},
        "fd-tnn": {"kernel": {"name": "frequency"}},
        "fd-tnn 256": {"kernel": {"name": "frequency", "grid": 256}},
        "ski-tnn": {"kernel": {"name": "warped"}, "engine": "ski"},
    },
}
_DENSE_LENGTH = 2048  # longer dense matrices do not fit in memory; longer signals take the same code path
_DENSE_CHANNELS = 4


@dataclass(frozen=True)
class Row:
    """Result for one direction and length, by method.

    Args:
        causal: Direction.
        length: Tokens per sequence.
        batch: Sequences.
        forward: Seconds of a forward pass.
        step: Seconds of a training step.
        error: Error against the method's own dense matrix, relative to the largest value.
        approximation: Error of causal SKI against the exact kernel, as estimated by `CausalSKI.choose`.
        memory: Bytes of a training step.
    """

    causal: bool
    length: int
    batch: int
    forward: dict[str, Timing]
    step: dict[str, Timing]
    error: dict[str, float]
    approximation: dict[str, float]
    memory: dict[str, int]

    def speed(self, method: str) -> float:
        """Compute the speed of the method's training step relative to TNN's with the engine ``auto``."""
        return self.step[BASE].median / self.step[method].median


def time_ops(
    lengths: Sequence[int],
    comparison: Comparison,
    *,
    directions: Sequence[bool] = (True, False),
    peers: Mapping[str, Factory] | None = None,
) -> list[Row]:
    """Time every method at each length and direction (True is causal), after checking its result.

    Methods are our operator with the kernels and engines of `METHODS`, the published algorithm, and peers, which are
    factories of causal layers by name.

    Raises:
        ValueError: If a result is wrong, or if there are peers but no causal direction.
    """
    if peers and True not in directions:
        raise ValueError("peers are timed with the causal layers; include the causal direction")
    rows = []
    cases = [(causal, length) for causal in directions for length in lengths]
    for causal, length in progress_bar(cases, desc="lengths", show=comparison.progress):
        factories: dict[str, Factory] = {
            **{name: partial(mixer, causal=causal, options=options) for name, options in METHODS[causal].items()},
            LITERAL: partial(literal, causal=causal),
            **(peers or {} if causal else {}),
        }
        check = partial(_check, channels=comparison.channels, length=length, causal=causal)
        batch, layers, forward, step, error, memory = comparison.measure(factories, length, check)
        rows.append(Row(causal, length, batch, forward, step, error, _approximations(layers), memory))
    return rows


def mixer(channels: int, length: int, *, causal: bool, options: Mapping[str, Any]) -> nn.Module:
    """Make our operator with a kernel and an engine. By default a frequency kernel has as many frequencies as tokens.
    An engine with a tolerance gets its plan here, so that choosing it is not timed."""
    kernel, engine = dict(options["kernel"]), options.get("engine", "auto")
    if kernel["name"] == "frequency":
        kernel.setdefault("grid", length)
    layer = ToeplitzMixer(channels, causal=causal, kernel=kernel, engine=engine)
    if isinstance(layer.ski, CausalSKI) and layer.ski.tolerance is not None:
        plan = layer.ski.plan(layer.kernel)
        planned = ToeplitzMixer(channels, causal=causal, kernel=kernel, engine={"name": "ski", **plan._asdict()})
        planned.load_state_dict(layer.state_dict())
        return planned
    return layer


def table_rows(rows: Sequence[Row]) -> list[tuple[Any, ...]]:
    """Format rows of (direction, length, method, forward, step, speed relative to tnn, memory, approximation error)."""
    lines = []
    for row in rows:
        for name, step in row.step.items():
            lines.append(
                (
                    "causal" if row.causal else "two-sided",
                    row.length,
                    name,
                    f"{row.forward[name].median * 1e3:.1f}",
                    f"{step.median * 1e3:.1f}",
                    f"{row.speed(name):.2f}x",
                    f"{row.memory[name] / 2**20:,.0f} MB" if name in row.memory else "",
                    f"{row.approximation[name]:.0e}" if name in row.approximation else "",
                )
            )
    return lines


def figure(rows: Sequence[Row]) -> Figure:
    """Plot speed relative to TNN against the length, one panel per direction, with marker sizes by memory (SKI-TNN
    fig. 1)."""
    panels = {}
    for causal in (True, False):
        direction_rows = [row for row in rows if row.causal is causal]
        if direction_rows:
            panels["causal" if causal else "two-sided"] = {
                name: [(row.length, row.speed(name), row.memory.get(name, 0)) for row in direction_rows]
                for name in direction_rows[0].step
            }
    return speed_over_length(panels)


def _check(layer: nn.Module, channels: int, length: int, causal: bool) -> float:
    if not isinstance(layer, ToeplitzMixer) or layer.ski is None:
        return check_layer(layer, channels, length, causal=causal)
    checked = torch.linspace(0, channels - 1, min(channels, _DENSE_CHANNELS)).long()
    length = min(length, _DENSE_LENGTH)
    return check_matrix(layer, _ski_matrix(layer, length, checked), checked, channels)


@torch.no_grad()
def _ski_matrix(layer: ToeplitzMixer, length: int, checked: Tensor) -> Tensor:
    """Compute dense float64 matrices ``(channels, length, length)`` of a SKI layer in a few channels."""
    ski, kernel = layer.ski, layer.kernel
    device = next(layer.parameters()).device
    if isinstance(ski, TwoSidedSKI):
        rank = min(ski.rank, length)
        lags = torch.arange(1 - rank, rank, dtype=torch.float64, device=device) * (length - 1) / max(1, rank - 1)
        smooth = kernel.smooth_at(lags)[checked].double().cpu()
        identity = torch.eye(length, dtype=torch.float64)[:, :, None].expand(-1, -1, len(checked))
        matrix = ski_reference(identity, smooth, degree=ski.degree).permute(2, 1, 0)
        local = kernel.local_taps()
        assert local is not None
        taps, origin = local[0][checked].double().cpu(), local[1]
        padded = torch.nn.functional.pad(taps, (max(0, taps.shape[1] - 1 - 2 * origin), 2 * origin - taps.shape[1] + 1))
        return matrix + toeplitz_matrix(padded, length, causal=False)
    assert isinstance(ski, CausalSKI)
    plan = ski.plan(kernel)
    nodes = max(plan.short_nodes, plan.grid(length).nodes)
    short = kernel.at(torch.arange(plan.width, device=device))[checked].double().cpu()
    coarse = kernel.at(torch.arange(nodes, device=device) * plan.spacing)[checked].double().cpu()
    return causal_ski_matrix(*split_kernel(short, coarse, plan), plan, length)


@torch.no_grad()
def _approximations(layers: Mapping[str, nn.Module]) -> dict[str, float]:
    """Compute the errors of causal SKI against the exact kernel."""
    errors = {}
    for name, layer in layers.items():
        if isinstance(layer, ToeplitzMixer) and isinstance(layer.ski, CausalSKI):
            errors[name] = layer.ski.choose(layer.kernel)[1]
    return errors
