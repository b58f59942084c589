"""Check the results of methods before they are timed, and measure their memory."""

from __future__ import annotations

import gc
import multiprocessing
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from lagwise.ops import toeplitz_product
from lagwise_papers.bench.timing import Timing, interleaved, training_step

_CHECKED_CHANNELS = 4
_DENSE_LENGTH = 8192

Factory = Callable[[int, int], nn.Module]


class Measured(NamedTuple):
    """Measurements at one length, by method: seconds of a forward pass and of a training step, errors relative to the
    largest value, and the peak memory of a step in bytes (empty if not measured)."""

    batch: int
    layers: dict[str, nn.Module]
    forward: dict[str, Timing]
    step: dict[str, Timing]
    error: dict[str, float]
    memory: dict[str, int]


@dataclass(frozen=True)
class Comparison:
    """Comparison of layers with each other.

    Args:
        channels: Channels of a layer.
        tokens: Tokens per batch; the batch size is ``tokens / length``, at least 1.
        repeats: Timed repeats.
        memory: Whether to measure peak memory too.
        threads: CPU threads; by default those of torch.
        warmup: Untimed calls of each method.
        progress: Whether to show a progress bar.
    """

    channels: int
    tokens: int = 8192
    repeats: int = 7
    memory: bool = True
    threads: int | None = None
    warmup: int = 2
    progress: bool = True

    def measure(self, factories: Mapping[str, Factory], length: int, check: Callable[[nn.Module], float]) -> Measured:
        """Check every layer (``check`` returns its error and raises ValueError for a wrong one), then time all in
        turn."""
        if self.threads:
            torch.set_num_threads(self.threads)
        device = "cuda" if torch.cuda.is_available() else "cpu"
        batch = max(1, self.tokens // length)
        torch.manual_seed(0)
        layers = {name: make(self.channels, length).to(device) for name, make in factories.items()}
        errors = {name: check(layer) for name, layer in layers.items()}
        x = torch.randn(batch, length, self.channels, device=device)
        forward, step = (
            interleaved(
                {name: method(layer, x) for name, layer in layers.items()}, repeats=self.repeats, warmup=self.warmup
            )
            for method in (forward_pass, training_step)
        )
        memory = {}
        if self.memory:
            threads = torch.get_num_threads()
            memory = {
                name: peak_memory(make, self.channels, length, batch, threads) for name, make in factories.items()
            }
        return Measured(batch, layers, forward, step, errors, memory)


def check_layer(layer: nn.Module, channels: int, length: int, *, causal: bool = True, tolerance: float = 1e-3) -> float:
    """Check that a layer is a Toeplitz product, for values and input gradients.

    The layer's response to an impulse at the first token (and at the last if two-sided) gives its taps. Its output for
    noise, and the gradient with respect to the input, are then compared with the product by the dense matrix of these
    taps, in a few channels. This works for any implementation. Beyond 8192 tokens the matrix does not fit in memory, so
    the float64 FFT is used instead.

    Args:
        layer: A module on ``(batch, length, channels)``.
        channels: Channels of the layer.
        length: Tokens of the test signals.
        causal: Whether the layer is causal or two-sided.
        tolerance: Largest error allowed, relative to the largest value.

    Returns:
        The largest relative error.

    Raises:
        ValueError: If the error is larger than ``tolerance``.
    """
    device = next(layer.parameters()).device
    with torch.no_grad():
        impulse = torch.zeros(1, length, channels, device=device)
        impulse[:, 0] = 1
        taps = layer(impulse)[0].t().double()
        if not causal:
            taps = torch.cat([layer(impulse.flip(1))[0, :-1].t().double(), taps], dim=1)
    engine = "dense" if length <= _DENSE_LENGTH else "fft"
    return check_product(
        layer,
        channels,
        length,
        lambda x, c: toeplitz_product(x, taps[c : c + 1], causal=causal, engine=engine),
        some_channels(channels),
        "causal Toeplitz product" if causal else "Toeplitz product",
        tolerance,
    )


def some_channels(channels: int) -> list[int]:
    """Choose a few evenly spaced channels: checking dense matrices of all would take minutes."""
    return torch.linspace(0, channels - 1, min(channels, _CHECKED_CHANNELS)).long().tolist()


def check_matrix(
    layer: nn.Module, matrices: Tensor, checked: Tensor, channels: int, *, tolerance: float = 1e-3
) -> float:
    """Check that a layer multiplies the ``checked`` channels by dense matrices ``(len(checked), length, length)``.

    Otherwise as `check_layer`.
    """
    by_channel = dict(zip(checked.tolist(), matrices, strict=True))

    def product(x: Tensor, channel: int) -> Tensor:
        return torch.einsum("ij,bjc->bic", by_channel[channel].to(x.device), x)

    return check_product(
        layer, channels, matrices.shape[1], product, list(by_channel), "product by its dense matrix", tolerance
    )


def check_product(
    layer: nn.Module,
    channels: int,
    length: int,
    product: Callable[[Tensor, int], Tensor],
    checked: Sequence[int],
    what: str,
    tolerance: float = 1e-3,
) -> float:
    """Compare a layer's outputs and input gradients for noise with a reference in float64.

    Args:
        layer: A module on ``(batch, length, channels)``.
        channels: Channels of the layer.
        length: Tokens of the noise.
        product: The reference, ``product(x, channel)`` with x ``(1, length, 1)``.
        checked: Channels to compare.
        what: Name of the product for the error message.
        tolerance: Largest error allowed, relative to the largest value.

    Returns:
        The largest relative error.

    Raises:
        ValueError: If the error is larger than ``tolerance``.
    """
    x = torch.randn(1, length, channels, device=next(layer.parameters()).device, requires_grad=True)
    grad = torch.randn_like(x)
    y = layer(x)
    (dx,) = torch.autograd.grad(y, x, grad)
    worst = 0.0
    for channel in checked:
        selection = slice(channel, channel + 1)
        exact_x = x.detach()[:, :, selection].double().requires_grad_()
        exact_y = product(exact_x, channel)
        (exact_dx,) = torch.autograd.grad(exact_y, exact_x, grad[:, :, selection].double())
        for ours, exact in ((y[:, :, selection], exact_y), (dx[:, :, selection], exact_dx)):
            worst = max(worst, _relative_error(ours, exact))
    if not worst <= tolerance:
        raise ValueError(
            f"{type(layer).__name__} is not a {what} of (batch, length, channels): off by {worst:.1e} "
            f"of the largest value at length {length}; wrong results are not timed"
        )
    return worst


def forward_pass(layer: nn.Module, x: Tensor) -> Callable[[], None]:
    """Make a function that runs a layer's forward pass without gradients."""

    def run() -> None:
        with torch.no_grad():
            layer(x)

    return run


def peak_memory(factory: Factory, channels: int, length: int, batch: int, threads: int) -> int:
    """Measure the bytes that a training step needs beyond the layer and its input; on a CPU, in a separate process."""
    if torch.cuda.is_available():
        return _step_memory_cuda(factory, channels, length, batch)
    return memory_of(_layer_steps, factory, channels, length, batch, threads=threads)


def memory_of(make: Callable[..., Iterator[Callable[[], None]]], *arguments: Any, threads: int) -> int:
    """Measure the bytes that a step needs on a CPU, in a separate process.

    Args:
        make: ``make(*arguments)`` yields a small step, which allocates the libraries' buffers, and then the step to
            measure.
        arguments: Arguments of ``make``.
        threads: CPU threads of the process.
    """
    return in_new_process(_memory_here, make, arguments, threads)


def in_new_process(function: Callable[..., Any], *arguments: Any) -> Any:
    """Call a module's function in a new process and return the result. `concurrent.futures.process.BrokenProcessPool`
    if the process is killed, for example for its memory."""
    with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as pool:
        return pool.submit(function, *arguments).result()


def _memory_here(make: Callable[..., Iterator[Callable[[], None]]], arguments: tuple[Any, ...], threads: int) -> int:
    torch.set_num_threads(threads)
    steps = make(*arguments)
    next(steps)()
    step = next(steps)
    gc.collect()
    before = process_bytes("VmRSS")
    step()
    return max(0, process_bytes("VmHWM") - before)


def _layer_steps(factory: Factory, channels: int, length: int, batch: int) -> Iterator[Callable[[], None]]:
    yield training_step(factory(channels, 64), torch.randn(1, 64, channels))
    yield training_step(factory(channels, length), torch.randn(batch, length, channels))


def _step_memory_cuda(factory: Factory, channels: int, length: int, batch: int) -> int:
    step = training_step(factory(channels, length).cuda(), torch.randn(batch, length, channels, device="cuda"))
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    step()
    return torch.cuda.max_memory_allocated() - before


def process_bytes(field: str) -> int:
    """Read a field of /proc/self/status in bytes: VmRSS is the present memory, VmHWM its peak. (getrusage's peak is
    inherited across exec, so it would include the parent's.)"""
    with open("/proc/self/status") as f:
        return next(int(line.split()[1]) * 1024 for line in f if line.startswith(field + ":"))


def _relative_error(value: Tensor, exact: Tensor) -> float:
    return ((value.detach() - exact.detach()).abs().max() / exact.detach().abs().max().clamp(min=1e-30)).item()
