"""One convolution of every channel of a signal with its own kernel, also with the gates around it, and the engines that
compute it."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, ClassVar, NamedTuple, Protocol

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.fx.experimental.symbolic_shapes import has_static_value

from lagwise.ops import native
from lagwise.ops.fused import frames as fused_frames
from lagwise.ops.fused import fused, joined
from lagwise.ops.operation import (
    PLAIN,
    Engine,
    Operation,
    Values,
    compute_dtype,
    definitions_only,
    graph_operator,
    in_graph,
    operation,
    symbolic,
)
from lagwise.ops.toeplitz import direct, spectral
from lagwise.ops.toeplitz.block import centre
from lagwise.ops.toeplitz.direct import symbolic_product
from lagwise.ops.tokens import with_biases

# Largest numbers of lags for which this engine is faster, forward and backward, on the CPU in float32, with and without
# the loops of `native`, for at least as many channels as fill a vector (docs/log.md, "few lags").
_FEW_LAGS, _FEW_LAGS_WITHOUT_NATIVE, _VECTOR_CHANNELS = 128, 64, 16
_FEW_LAGS_ON_GPU = 24  # docs/concepts.md, "Engines on a GPU"


def spectral_product(x: Tensor, spectrum: Tensor) -> Tensor:
    """`toeplitz_product` for a two-sided kernel given in the frequency domain: its taps are never transformed.

    Formula: ``y = irfft(rfft(x, n) * spectrum, n)`` with n = 2 (points - 1).

    Args:
        x: ``(batch, length, channels)``.
        spectrum: ``(2, channels, points)``, real and imaginary parts of the rfft of n taps on a circle, lag 0 first and
            negative lags at the end. Separate parts, because a matrix product produces them.

    Returns:
        A tensor like x. Precision and round-off as in `toeplitz_product`.

    Raises:
        ValueError: For an empty signal, a signal longer than n / 2, whose lags do not fit on the circle, or a spectrum
            with other channels.

    Source: SKI-TNN §3.3.2.
    """
    if x.dim() != 3 or x.shape[1] == 0 or not x.is_floating_point():
        raise ValueError(f"x must be (batch, length >= 1, channels) of real numbers, got {tuple(x.shape)} {x.dtype}")
    if spectrum.dim() != 3 or spectrum.shape[:2] != (2, x.shape[2]) or spectrum.is_complex():
        expected = f"(2, channels={x.shape[2]}, points) of real numbers"
        raise ValueError(f"spectrum must be {expected}, got {tuple(spectrum.shape)} {spectrum.dtype}")
    n_fft = 2 * (spectrum.shape[2] - 1)
    if 2 * x.shape[1] > n_fft:
        raise ValueError(f"{spectrum.shape[2]} points serve at most {n_fft // 2} tokens, got {x.shape[1]}")
    return convolution(x, spectrum, 0, "fft")


class Form(Protocol):
    """A product ``y = x * k`` of a signal ``(batch, length, channels)`` and one kernel per channel.

    It is defined by three contractions of ``<g, x * k>``: 0 gives y from x and k, 1 the gradient of x from g and k, and
    2 the gradient of k from g and x. The gradients of each contraction are the other two.
    """

    @property
    def channel_axis(self) -> int: ...  # of the kernel

    def contract(self, index: int, a: Tensor, b: Tensor, /) -> Tensor: ...  # without a gradient


class Bilinear(Operation):
    """An operation that is linear in its first two arguments, a signal and a kernel: differentiable any number of times
    and under `torch.func`, always by fast contractions.

    It decorates a function that returns the `Form` for the same arguments: signal, kernel and settings.
    """

    def __init__(self, form: Callable[..., Form]):
        super().__init__(form)
        self.plain = self._product

    def _product(self, x: Tensor, kernel: Tensor, *settings: Any) -> Tensor:
        form = self.definition(x, kernel, *settings)
        if torch.compiler.is_compiling():  # exporters refuse some rules of a contraction
            return form.contract(0, x, kernel)
        return _Contraction.apply(x, kernel, 0, form)


class _Contraction(torch.autograd.Function):
    """A contraction, with rules for every transform."""

    @staticmethod
    def forward(a: Tensor, b: Tensor, index: int, form: Form) -> Tensor:
        return form.contract(index, a, b)

    @staticmethod
    def setup_context(ctx, inputs: tuple[Tensor, Tensor, int, Form], output: Tensor) -> None:
        a, b, ctx.index, ctx.form = inputs
        ctx.save_for_backward(a, b)
        ctx.save_for_forward(a, b)

    @staticmethod
    def backward(ctx, grad: Tensor):
        operands, gradients = list(ctx.saved_tensors), []
        operands.insert(ctx.index, grad)  # in the place of the result
        for position, needed in zip(sorted({0, 1, 2} - {ctx.index}), ctx.needs_input_grad[:2], strict=True):
            others = [operand for other, operand in enumerate(operands) if other != position]
            gradient = _Contraction.apply(*others, position, ctx.form).to(operands[position].dtype) if needed else None
            gradients.append(gradient)
        return *gradients, None, None

    @staticmethod
    def jvp(ctx, a_tangent: Tensor, b_tangent: Tensor, *_: None) -> Tensor:
        a, b = ctx.saved_tensors
        settings = (ctx.index, ctx.form)
        return _Contraction.apply(a_tangent, b, *settings) + _Contraction.apply(a, b_tangent, *settings)

    @staticmethod
    def vmap(info: Any, in_dims: tuple, a: Tensor, b: Tensor, index: int, form: Form) -> tuple[Tensor, int]:
        """Several signals with one kernel become a larger batch; signals with one kernel each become more channels."""
        if index != 2 and in_dims[1] is None:
            folded = a.movedim(in_dims[0], 0).flatten(0, 1)
            return _Contraction.apply(folded, b, index, form).unflatten(0, (info.batch_size, -1)), 0
        folded = []
        for t, dim, axis in zip((a, b), in_dims[:2], (2, form.channel_axis if index != 2 else 2), strict=True):
            t = t.unsqueeze(axis) if dim is None else t.movedim(dim, axis)
            folded.append(t.expand(*t.shape[:axis], info.batch_size, *t.shape[axis + 1 :]).flatten(axis, axis + 1))
        axis = form.channel_axis if index == 2 else 2
        return _Contraction.apply(*folded, index, form).unflatten(axis, (info.batch_size, -1)), axis


class _Settings(NamedTuple):
    origin: int
    engine: str
    dilation: int
    count: int  # of taps, or of frequencies
    channel_axis: int  # of the kernel


class _Contractions(_Settings):
    """`convolution` as a `Form`, in PyTorch's operations."""

    def contract(self, index: int, a: Tensor, b: Tensor) -> Any:
        if index == 0:
            if symbolic(a.shape[1]) and self.channel_axis == 0:
                return symbolic_product(a, b, self.origin, self.dilation)
            return self._engine(a, b).forward(a, b, *self[:3])[0]
        if index == 1:
            return self.gradients(a, a, b, (True, False))[0]
        shape = (b.shape[2], self.count) if self.channel_axis == 0 else (2, b.shape[2], self.count)
        return self.gradients(a, b, b.new_empty(shape, dtype=compute_dtype(a, b)), (False, True))[1]

    def gradients(self, grad: Tensor, x: Tensor, kernel: Tensor, needs_grad: Sequence[bool]) -> Any:
        return self._engine(x, kernel).backward((x, kernel, *self[:3]), (), [grad], needs_grad)[:2]

    def _engine(self, x: Tensor, kernel: Tensor) -> type[Engine]:
        return _Direct if is_direct(x, kernel, self.engine, self.dilation) else _FFT


@Bilinear
def convolution(x: Tensor, kernel: Tensor, origin: int, engine: str = "auto", dilation: int = 1) -> Form:
    """Convolve every channel of a signal with its own kernel.

    Formula: ``y_i = sum_m kernel_m x_{i - (m - origin) dilation}``.

    Args:
        x: ``(batch, length, channels)``.
        kernel: Taps ``(channels, n_taps)`` with lag 0 at index ``origin``, or frequencies as in `spectral_product`.
        origin: Index of lag 0.
        engine: ``auto``, ``fft``, ``overlap_save`` or ``direct`` as in `toeplitz_product`, which checks the arguments;
            or ``spectral``, which is ``auto`` without the direct product.
        dilation: In tokens; above 1, the product is direct whatever the engine.

    Returns:
        A tensor like x.

    Source: TNN eq. 4. Lag by lag: SKI-TNN §3.2 (T_sparse); TCNCA §2 (dilated).
    """
    return _Contractions(origin, engine, dilation, kernel.shape[-1], kernel.dim() - 2)


def is_direct(x: Tensor, kernel: Tensor, engine: str, dilation: int = 1) -> bool:
    """Whether the product is computed lag by lag."""
    return engine == "direct" or dilation > 1 or (engine == "auto" and kernel.dim() == 2 and few_lags(x, kernel))


def few_lags(x: Tensor, taps: Tensor) -> bool:
    """Whether direct products are fastest for this signal and these taps ``(channels, n_taps)``."""
    count = taps.shape[1]
    if fused(x, taps):
        return count <= _FEW_LAGS_ON_GPU
    if x.device.type != "cpu" or compute_dtype(x, taps) != torch.float32 or x.shape[2] < _VECTOR_CHANNELS:
        return False
    # In this order, so that the C loops are compiled only for a number between the two.
    return count <= _FEW_LAGS_WITHOUT_NATIVE or (count <= _FEW_LAGS and native.available())


def reachable_taps(taps: Tensor, length: int, causal: bool) -> tuple[Tensor, int]:
    """The taps of lags within a signal of this length, and the index of lag 0."""
    if causal:
        return taps[:, : torch.sym_min(length, taps.shape[1])], 0
    middle = centre(taps)
    reach = min(middle, length - 1)
    return taps[:, middle - reach : middle + reach + 1], reach


def truncation_length(decay: float, tolerance: float) -> int | None:
    """Number of taps after which a kernel with this decay is negligible.

    Formula: the smallest ``L`` with ``decay**L <= tolerance``, that is ``ceil(ln tolerance / ln decay)``. Leaving out
    lags ``>= L`` changes an output by at most ``tolerance * max|t| * max|x| / (1 - decay)``.

    Args:
        decay: Per token, in [0, 1].
        tolerance: Relative, in (0, 1).

    Returns:
        The number of taps, or None if the kernel never decays (``decay = 1``).

    Raises:
        ValueError: Outside these ranges.

    Source: TNN eq. 5; the bound is the geometric series of the omitted lags.

    >>> truncation_length(0.99, 1e-3)  # 0.99 ** 688 = 0.00099
    688
    """
    if not 0.0 <= decay <= 1.0:
        raise ValueError(f"decay must be in [0, 1], got {decay}")
    if not 0.0 < tolerance < 1.0:
        raise ValueError(f"tolerance must be in (0, 1), got {tolerance}")
    if decay == 1.0:
        return None
    if decay == 0.0:
        return 1
    return max(1, math.ceil(math.log(tolerance) / math.log(decay)))


@convolution.engine("direct")
class _Direct(Engine):
    @staticmethod
    def serves(x: Tensor, kernel: Tensor, origin: int, engine: str, dilation: int) -> bool:
        return is_direct(x, kernel, engine, dilation)

    @staticmethod
    def forward(x: Tensor, kernel: Tensor, origin: int, engine: str, dilation: int) -> tuple[Tensor, Values]:
        return direct.direct_values(x, kernel, origin, dilation), ()

    @staticmethod
    def backward(args: Values, saved: Values, grads: Values, needs_grad: Sequence[bool]) -> Values:
        x, kernel, origin, _, dilation = args
        return *direct.direct_gradients(grads[0], x, kernel, origin, dilation, needs_grad[:2]), None, None, None


class _Planned(Engine):
    """An engine that follows a `Plan`."""

    faster: ClassVar[Callable[[Tensor, Tensor], bool]] = staticmethod(lambda x, kernel: True)
    product: ClassVar[Callable[..., Tensor]]
    gradients: ClassVar[Callable[..., tuple[Tensor | None, ...]]]

    @classmethod
    def serves(cls, x: Tensor, kernel: Tensor, origin: int, engine: str, dilation: int) -> bool:
        return cls.faster(x, kernel) and not is_direct(x, kernel, engine, dilation)

    @classmethod
    def forward(cls, x: Tensor, kernel: Tensor, origin: int, engine: str, dilation: int) -> tuple[Tensor, Values]:
        return cls.product(x, kernel, spectral.plan_of(x, kernel, origin, engine)), ()

    @classmethod
    def backward(cls, args: Values, saved: Values, grads: Values, needs_grad: Sequence[bool]) -> Values:
        x, kernel, origin, engine, _ = args
        plan = spectral.plan_of(x, kernel, origin, engine)
        return *cls.gradients(grads[0], x, kernel, plan, needs_grad)[:2], None, None, None


@convolution.engine("triton")
class _Frames(_Planned):
    faster = staticmethod(fused)
    product, gradients = staticmethod(spectral.frame_values), staticmethod(spectral.frame_gradients)


@convolution.engine("loop")
class _Loops(_Planned):
    faster = staticmethod(spectral.by_loops)
    product, gradients = staticmethod(spectral.loop_values), staticmethod(spectral.loop_gradients)


@convolution.engine("fft")
class _FFT(_Planned):
    product, gradients = staticmethod(spectral.fft_values), staticmethod(spectral.fft_gradients)


class Chosen(Engine):
    """The engine that serves when it is called: in a graph for all lengths, at each step."""

    @staticmethod
    def forward(*args: Any) -> Any:
        return _serving(args).forward(*args)

    @staticmethod
    def backward(args: Values, saved: Values, grads: Values, needs_grad: Sequence[bool]) -> Values:
        return _serving(args).backward(args, saved, grads, needs_grad)


def _serving(args: Values) -> type[Engine]:
    return next(engine for engine in convolution.engines.values() if engine.serves(*args))


# Plans, and the shapes of images and padding, would be compiled anew for every length of the signal.
convolution.in_graphs(
    "toeplitz_product", lambda x, *_: torch.empty_like(x, memory_format=torch.contiguous_format), engine=Chosen
)


def gated_product(
    gate: Tensor, value: Tensor, kernel: Tensor, origin: int, engine: str, biases: Tensor | None = None
) -> Tensor | None:
    """``silu(gate) * (kernel * silu(value))`` where kernels on a GPU or loops in C serve the product by FFT, and it has
    not so few lags that the direct engine is faster; otherwise None.

    Shapes: gate and value ``(batch, length, channels)``; kernel, taps ``(channels, n_taps)`` with lag 0 at index
    origin, or frequencies as of `spectral_product`; biases ``(2, channels)``, added to gate and value before, which
    only loops do; result like the gate. On a GPU, spectra are float32, and kept for the gradient. A graph for all
    lengths computes them again, since the length of its FFTs is no symbol. Loops compute the product again.
    """
    if gate.dtype != value.dtype or engine not in ("auto", "fft", "overlap_save") or definitions_only():
        return None
    static = has_static_value(gate.shape[1])
    if in_graph() and fused(gate, value, kernel):
        return _gated_operator(_Pair.apply(gate, value), kernel, origin, engine, static)[0] if biases is None else None
    args = (gate, value, kernel, biases, origin, engine)
    return _gated(*args) if static and _gated.chosen(*args) != PLAIN else None


@operation
def _gated(gate: Tensor, value: Tensor, kernel: Tensor, biases: Tensor | None, origin: int, engine: str) -> Tensor:
    gate, value = with_biases(gate, value, biases)
    return F.silu(gate) * convolution(F.silu(value), kernel, origin, engine)


def _in_one_part(value: Tensor, kernel: Tensor, origin: int, engine: str) -> bool:
    return not is_direct(value, kernel, engine) and spectral.plan_of(value, kernel, origin, engine).parts == 1


@_gated.engine("triton")
class _GatedFrames(Engine):
    @staticmethod
    def serves(gate: Tensor, value: Tensor, kernel: Tensor, biases: Tensor | None, origin: int, engine: str) -> bool:
        return biases is None and fused(gate, value, kernel) and _in_one_part(value, kernel, origin, engine)

    @staticmethod
    def forward(
        gate: Tensor, value: Tensor, kernel: Tensor, biases: Tensor | None, origin: int, engine: str
    ) -> tuple[Tensor, Values]:
        plan = spectral.plan_of(value, kernel, origin, engine)
        spectrum, factors = _gated_spectra(value, kernel, plan)
        frames = fused_frames.inverse(fused_frames.multiply(spectrum, factors))
        y, out = fused_frames.store_gated(*fused_frames.used(frames, plan.valid_frames, value.shape[1]), gate)
        return out, (y, spectrum, factors)

    @staticmethod
    def backward(args: Values, saved: Values, grads: Values, needs_grad: Sequence[bool]) -> Values:
        gate, value, kernel, _, origin, engine = args
        plan = spectral.plan_of(value, kernel, origin, engine)
        y, spectrum, factors = saved if len(saved) > 1 else (*saved, *_gated_spectra(value, kernel, plan))
        both = gate.new_empty((*gate.shape[:2], 2 * gate.shape[2]))
        dgate, dvalue = both.chunk(2, dim=2)  # neighbours in memory, for `joined`
        frames = fused_frames.load_gated_gradient(grads[0], y, gate, dgate, list(plan.valid_frames))
        spectra = (spectrum, fused_frames.transform(frames), factors)
        dkernel, dspectrum = spectral.packed_gradients(*spectra, kernel, plan)
        frames = fused_frames.used(fused_frames.inverse(dspectrum), plan.signal_frames, value.shape[1])
        fused_frames.store_activation_gradient(*frames, value, dvalue)
        return dgate, dvalue, dkernel, None, None, None


def _gated_spectra(value: Tensor, kernel: Tensor, plan: spectral.Plan) -> tuple[Tensor, Tensor]:
    """The packed spectrum of silu(value), and the spectrum of the kernel."""
    frames = fused_frames.load(value, plan.signal_frames, activate=True)
    return fused_frames.transform(frames), spectral.kernel_spectrum(kernel, plan)


@_gated.engine("loop")
class _GatedLoops(Engine):
    @staticmethod
    def serves(gate: Tensor, value: Tensor, kernel: Tensor, biases: Tensor | None, origin: int, engine: str) -> bool:
        served = native.serves(gate) and spectral.by_loops(value, kernel)
        return served and _in_one_part(value, kernel, origin, engine)

    @staticmethod
    def forward(
        gate: Tensor, value: Tensor, kernel: Tensor, biases: Tensor | None, origin: int, engine: str
    ) -> tuple[Tensor, Values]:
        return spectral.loop_values(value, kernel, spectral.plan_of(value, kernel, origin, engine), gate, biases), ()

    @staticmethod
    def backward(args: Values, saved: Values, grads: Values, needs_grad: Sequence[bool]) -> Values:
        gate, value, kernel, biases, origin, engine = args
        plan, needed = spectral.plan_of(value, kernel, origin, engine), (True, needs_grad[2])
        gradients = spectral.loop_gradients(grads[0], value, kernel, plan, needed, gate, biases)
        dvalue, dkernel, dgate, dbiases = gradients
        return dgate, dvalue, dkernel, dbiases if needs_grad[3] else None, None, None


class _Pair(torch.autograd.Function):
    """Gate and value side by side. Compilers leave out both of its copies, where one product made gate and value: a
    `cat` of what `split_with_sizes` has made."""

    @staticmethod
    def forward(ctx: Any, gate: Tensor, value: Tensor) -> Tensor:
        return torch.cat([gate, value], dim=-1)

    @staticmethod
    def backward(ctx: Any, grad: Tensor):
        return grad.split_with_sizes([grad.shape[-1] // 2] * 2, dim=-1)


def _of_graph(pair: Tensor, kernel: Tensor, origin: int, engine: str) -> tuple[Values, bool]:
    """The arguments of `_gated`, and whether its fused kernels serve them."""
    gate, value = pair.chunk(2, dim=2)
    return (gate, value, kernel, None, origin, engine), _GatedFrames.serves(gate, value, kernel, None, origin, engine)


def _gated_compute(pair: Tensor, kernel: Tensor, origin: int, engine: str, keep: bool) -> tuple[Tensor, ...]:
    (gate, value, *rest), served = _of_graph(pair, kernel, origin, engine)
    if served:
        out, (y, *spectra) = _GatedFrames.forward(gate, value, *rest)
    else:
        y, spectra, keep = convolution(F.silu(value), kernel, origin, engine), [], False
        out = F.silu(gate) * y
    saved = map(torch.view_as_real, spectra) if keep else (pair.new_empty(0, dtype=torch.float32) for _ in range(2))
    return out, y, *saved


def _gated_like(pair: Tensor, kernel: Tensor, origin: int, engine: str, keep: bool) -> tuple[Tensor, ...]:
    batch, length, channels = pair.shape[0], pair.shape[1], pair.shape[2] // 2
    shapes: list[tuple[int, ...]] = [(0,), (0,)]
    if keep and _of_graph(pair, kernel, origin, engine)[1]:
        plan = spectral.plan_of(pair, kernel, origin, engine)
        points = plan.n_fft // 2
        shapes = [(batch, channels, plan.frames, points, 2), (channels, 1, points + 1, 2)]
    products = (pair.new_empty((batch, length, channels)) for _ in range(2))
    return *products, *(pair.new_empty(shape, dtype=torch.float32) for shape in shapes)


def _gated_gradients(
    grad: Tensor, pair: Tensor, kernel: Tensor, y: Tensor, spectrum: Tensor, factors: Tensor, *numbers: Any
) -> tuple[Tensor, Tensor | None]:
    origin, engine, keep = numbers
    (gate, value, *rest), served = _of_graph(pair, kernel, origin, engine)
    if served:
        spectra = map(torch.view_as_complex, (spectrum, factors)) if keep else ()
        dgate, dvalue, dkernel, *_ = _GatedFrames.backward((gate, value, *rest), (y, *spectra), [grad], [True] * 3)
    else:
        dgate = torch.ops.aten.silu_backward(grad * y, gate)
        arguments = (F.silu(value), kernel, origin, engine, 1)
        dsignal, dkernel, *_ = Chosen.backward(arguments, (), [grad * F.silu(gate)], (True, True))
        dvalue = torch.ops.aten.silu_backward(dsignal, value)
    return joined([dgate, dvalue]), dkernel


# Compilers fuse the gates with neither the transposition into frames nor that back. Spectra are kept as real numbers,
# because inductor makes no kernels of complex ones.
_gated_operator = graph_operator(
    "gated_product",
    _gated_compute,
    lambda args, saved, grads, _: _gated_gradients(*grads, *args[:2], *saved, *args[2:]),
    _gated_like,
    saved=3,
)
