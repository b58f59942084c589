"""The Toeplitz neural operator, a lag kernel applied to every channel, and the unit that gates it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from lagwise.kernels import KERNELS, DiagonalKernel, LagKernel
from lagwise.kernels.base import cached, cached_taps, some_channels
from lagwise.mixers.base import Mixer
from lagwise.mixers.derived import Derived
from lagwise.mixers.ski import CausalSKI, TwoSidedSKI
from lagwise.ops import ENGINES, Layout, online_prefill, toeplitz_product
from lagwise.ops.fused import fused
from lagwise.ops.fused.average import moving_average
from lagwise.ops.operation import at_most, beyond, symbolic
from lagwise.ops.packing import from_first_token
from lagwise.ops.product import saved_engine
from lagwise.ops.recurrence import Blocks, DiagonalSSM, zoh_mix
from lagwise.ops.streaming import (
    ONLINE_BLOCK,
    DueState,
    OnlineState,
    OnlineTaps,
    WindowState,
    due_step,
)
from lagwise.ops.toeplitz import dilated_step, gated_product, reachable_taps
from lagwise.ops.tokens import apply_linear, linears, silu_product, with_biases
from lagwise.tables import build, known


class ModalState(NamedTuple):
    """The state of a kernel that is a state space: real and imaginary parts, ``(batch, modes, channels)``."""

    real: Tensor
    imaginary: Tensor


class LongTaps(NamedTuple):
    """Taps of an exact kernel: all, ``(channels, support)``, None if it has no end; and those of the smallest block,
    ``(block, channels)``, lag 0 first."""

    taps: Tensor | None
    near: Tensor


class Exact:
    """Form of a `ToeplitzMixer` with any kernel: products with its taps, and streams by `online_prefill`."""

    def mix(self, mixer: ToeplitzMixer, x: Tensor, state: Any, layout: Layout) -> tuple[Tensor, Any]:
        """`Mixer.mix`, without shards."""
        kernel = mixer.kernel
        if state is None:
            limit = kernel.max_length
            if limit is not None and layout.mask is not None and beyond(x.shape[1], limit):
                return from_first_token(lambda x, _: mixer.product(x), x, layout.mask), None  # padding does not count
            return mixer.product(x), None
        if kernel.max_length is not None:
            kernel.check_length(state.seen + x.shape[1])
        y, state = online_prefill(x, state)
        return y.to(x.dtype), state

    def mix_token(self, mixer: ToeplitzMixer, x: Tensor, state: Any) -> tuple[Tensor, Any]:
        """`Mixer.mix_token`."""
        if isinstance(state, DueState):
            return due_step(x, state, mixer.derived().near)
        if isinstance(state, WindowState):
            y, ring = dilated_step(x, mixer.derived().taps.flip(1).t(), 1, *state)
            return y, WindowState(ring, state.seen + 1)
        y, state = self.mix(mixer, x[:, None], state, Layout())
        return y[:, 0], state

    def init_state(self, mixer: ToeplitzMixer, batch_size: int) -> Any:
        """`Mixer.init_state`."""
        return OnlineState.start(batch_size, OnlineTaps(mixer.kernel.taps, mixer.kernel.support))

    def derive(self, kernel: LagKernel, form: str) -> Any:
        """`Derived.derive`."""
        support = kernel.support
        taps = None if support is None or form == "online" else kernel.taps(support)
        near = kernel.taps(ONLINE_BLOCK if support is None else min(ONLINE_BLOCK, support)).t()
        return LongTaps(taps, F.pad(near, (0, 0, 0, ONLINE_BLOCK - len(near))).contiguous())


class StateSpace(Exact):
    """Form with a `DiagonalKernel`, which streams as a state space, in constant memory. Whole sequences are products
    with its taps, but for those of graphs, and on a GPU with a kernel of `few_modes`."""

    def mix(self, mixer: ToeplitzMixer, x: Tensor, state: ModalState | None, layout: Layout) -> tuple[Tensor, Any]:
        if layout.token_time is not None:
            return self._mix_timed(mixer, x, state, layout)
        if state is None:
            if not mixer.frozen:
                return super().mix(mixer, x, None, layout)
            state = self.init_state(mixer, x.shape[0])
        ssm = mixer.derived()
        y, parts = ssm.prefill(x, state, lambda size: self._blocks(mixer, size), graph=mixer.frozen)
        return y.to(x.dtype), ModalState(*parts)

    def _mix_timed(
        self, mixer: ToeplitzMixer, x: Tensor, state: ModalState | None, layout: Layout
    ) -> tuple[Tensor, Any]:
        kernel = mixer.kernel
        assert isinstance(kernel, DiagonalKernel)
        memory = None if state is None else torch.complex(*state).transpose(1, 2)
        with torch.autocast(x.device.type, enabled=False):
            _, weights, (direct, *_) = zip(*kernel.modes(), strict=True)
            modes = kernel.modes_at(layout.times(mixer.causal))
            y, end = zoh_mix(x.to(direct.dtype), modes, weights, direct, memory)
        end = end.transpose(1, 2)
        return y.to(x.dtype), ModalState(end.real, end.imag)

    def mix_token(self, mixer: ToeplitzMixer, x: Tensor, state: ModalState) -> tuple[Tensor, Any]:
        y, parts = mixer.derived().step(x, state)
        return y.to(x.dtype), ModalState(*parts)

    def init_state(self, mixer: ToeplitzMixer, batch_size: int) -> ModalState:
        return ModalState(*mixer.derived(checked=True).start(batch_size))

    def derive(self, kernel: LagKernel, form: str) -> DiagonalSSM:
        return DiagonalSSM.of(kernel.recurrence())

    def _blocks(self, mixer: ToeplitzMixer, size: int) -> Blocks:
        """The factors of blocks of so many tokens."""
        # the cached result belongs to the present weights, as the number of these tensors does
        present = None if torch.is_grad_enabled() else mixer.derived()
        make = lambda: (mixer.kernel.recurrence().blocks(size), present)  # noqa: E731
        return cached(mixer, "blocks", (size, id(present)), make, by_value=False)[0]


_EXACT, _STATE_SPACE = Exact(), StateSpace()


class ToeplitzMixer(Derived, Mixer):
    """TNO: ``y_i = sum_j k(i - j) x_j`` in every channel (TNN §3.2, eq. 4; fig. 2).

    Causal convolutions and linear state spaces are such mixers (TNN §3.4, eq. 10 to 16).

    Options:
        kernel: spec of a lag kernel; in code, also a `LagKernel` of as many channels.
        engine: as in `toeplitz_product`, or ``ski``: SKI-TNN's approximation, with options as ``{"name": "ski", ...}``
            (`CausalSKI` or `TwoSidedSKI`).

    Exact engines stream by `online_prefill`: O(log² n) per token, where n is the length of the text or the kernel's
    support, if it ends; memory is then constant too. A kernel that is a state space (``modal``) streams as one. SKI
    keeps a few tokens and one node for every ``spacing`` tokens.

    >>> mixer = ToeplitzMixer(4, kernel={"name": "rpe", "decay": 0.99})
    >>> mixer(torch.randn(2, 1000, 4)).shape
    torch.Size([2, 1000, 4])
    """

    any_rate = takes_times = takes_shards = True

    def __init__(
        self,
        channels: int,
        *,
        causal: bool = True,
        kernel: Mapping[str, Any] | None = None,
        engine: str | Mapping[str, Any] = "auto",
    ):
        super().__init__(channels, causal)
        if not isinstance(kernel, LagKernel):
            kernel = build(KERNELS, kernel or {"name": "rpe"}, channels, what="kernel", causal=causal)
        self.kernel: Any = kernel
        if not isinstance(engine, str | Mapping):
            raise ValueError(f"engine must be a name or a mapping with a 'name', got {engine!r}")
        spec = {"name": engine} if isinstance(engine, str) else engine
        self.ski: CausalSKI | TwoSidedSKI | None = None
        if spec.get("name") == "ski":
            self.ski = build(
                {"ski": CausalSKI if causal else TwoSidedSKI},
                spec,
                self.kernel,
                what="causal engine" if causal else "two-sided engine",
            )
        elif len(spec) > 1:
            raise ValueError(f"only engine 'ski' has options, got {dict(spec)}")
        self.engine: str = known(saved_engine(spec.get("name")), ENGINES, "engine")

    @property
    def form(self) -> Any:
        """The form of its computation: exactly, as a state space, or by SKI."""
        return self.ski or (_STATE_SPACE if self.kernel.recurrent else _EXACT)

    @property
    def frozen(self) -> bool:
        """Whether it is a copy for graphs (`lagwise.mixers.derived.frozen`)."""
        return self._frozen is not None

    @property
    def counts_tokens(self) -> str | None:
        kernel = self.kernel
        if isinstance(kernel, DiagonalKernel) and kernel.any_rate and self.ski is None:
            return None
        return "engine ski" if self.ski is not None else f"kernel {type(kernel).__name__}"

    @property
    def grows(self) -> bool:  # type: ignore[override]
        """Whether the state grows with the text: that of a kernel without end, unless it is a state space."""
        return self.causal and self.kernel.support is None and self.form is not _STATE_SPACE

    def require_fixed(self, *, online: bool = False) -> None:
        if self.grows and (self.ski is not None or not online):
            raise ValueError(
                f"kernel {type(self.kernel).__name__} has infinite support, so its streaming state grows with the "
                "text; convert it to a state space first, with model.to_recurrent()"
            )

    def mix(self, x: Tensor, state: Any, layout: Layout) -> tuple[Tensor, Any]:
        if layout.shard is not None:
            return self._mix_shard(x, layout), None
        return self.form.mix(self, x, state, layout)

    def mix_token(self, x: Tensor, state: Any) -> tuple[Tensor, Any]:
        return self.form.mix_token(self, x, state)

    def init_state(self, batch_size: int) -> Any:
        self.require_causal()
        return self.form.init_state(self, batch_size)

    def derive(self, form: str = "eager") -> Any:
        return self.form.derive(self.kernel, form) if self.causal else ()

    def _mix_shard(self, x: Tensor, layout: Layout) -> Tensor:
        """Exchange the tokens within the kernel's support if these are fewer than all tokens of a share of the
        channels."""
        shard, support = layout.shard, self.kernel.support
        sent = 2 * shard.length * (shard.count - 1) // shard.count**2  # tokens that two all-to-alls send and receive
        if self.ski is None and support is not None and support - 1 <= sent:
            return shard.near(self._whole, x, support - 1, 0 if self.causal else support - 1)
        share = some_channels(self, *shard.share(self.channels))
        if isinstance(self.ski, CausalSKI):  # whose plan depends on all channels
            share.ski = self.ski.planned(self.kernel)
        return shard.by_channels(lambda x, layout: share.mix(x, None, layout)[0], x)

    def product(self, x: Tensor) -> Tensor:
        """The product of whole rows with the kernel's taps, or, on a GPU, of a state space by its recurrence."""
        kernel = self.kernel
        if isinstance(kernel, DiagonalKernel) and kernel.few_modes and fused(x) and self.engine == "auto":
            ((decay, angle, weight, direct),) = kernel.sides()
            return moving_average(x, weight, -decay, direct, angle)
        return toeplitz_product(x, self.taps(x.shape[1]), causal=self.causal, engine=self.engine)

    def gated(self, gate: Tensor, value: Tensor, biases: Tensor | None, layout: Layout) -> Tensor:
        """``silu(gate) * forward(silu(value))`` of whole rows: in fewer passes where kernels on a GPU or loops in C
        compute it. biases: as of `gated_product`."""
        if self.gates(layout) and self.engine in ("auto", "fft", "overlap_save"):
            taps, origin = reachable_taps(self.taps(value.shape[1]), value.shape[1], self.causal)
            return gated_product(gate, value, taps, origin, self.engine, biases)
        gate, value = with_biases(gate, value, biases)
        return silu_product(gate, self(F.silu(value), layout=layout))

    def gates(self, layout: Layout) -> bool:
        """Whether `gated` may take fewer passes for rows of this layout."""
        parts = (layout.mask, layout.seq_idx, layout.shard, layout.token_time)
        return all(part is None for part in parts) and self.ski is None and self._frozen is not DiagonalSSM

    def taps(self, length: int) -> Tensor:
        """Return taps for a signal of this length, or all taps if a graph leaves it open."""
        if self._frozen is LongTaps and (taps := self.derived().taps) is not None:
            return taps[:, : at_most(taps.shape[1], length)]
        support = self.kernel.support
        return cached_taps(self.kernel, support if symbolic(length) and support else length)


class GTU(Mixer):
    """Gated Toeplitz unit: ``W_o (silu(W_u x) * TNO(silu(W_v x)))`` (TNN §3.1 and fig. 2; SKI-TNN app. A).

    Options:
        expansion: width of the gate relative to the channels (table 13: 3).
        kernel: spec of a lag kernel.
        engine: as in `ToeplitzMixer`.

    ValueError if expansion times channels is less than 1.

    >>> GTU(4, kernel={"name": "rpe"})(torch.randn(2, 100, 4)).shape
    torch.Size([2, 100, 4])
    """

    any_rate = takes_times = takes_shards = True

    def __init__(
        self,
        channels: int,
        *,
        causal: bool = True,
        expansion: float = 3,
        kernel: Mapping[str, Any] | None = None,
        engine: str | Mapping[str, Any] = "auto",
    ):
        super().__init__(channels, causal)
        width = gated_width(channels, expansion)
        self.gate = nn.Linear(channels, width)
        self.value = nn.Linear(channels, width)
        self.toeplitz = ToeplitzMixer(width, causal=causal, kernel=kernel, engine=engine)
        self.out = nn.Linear(width, channels)

    def mix(self, x: Tensor, state: Any, layout: Layout) -> tuple[Tensor, Any]:
        if state is None and self.toeplitz.gates(layout):
            (gate, value), biases = apply_linear(x, self.gate, self.value)
        else:
            (gate, value), biases = linears(x, self.gate, self.value), None
        if state is None:
            return linears(self.toeplitz.gated(gate, value, biases, layout), self.out)[0], None
        y, state = self.toeplitz.prefill(F.silu(value), state, layout=layout)
        return linears(silu_product(gate, y), self.out)[0], state

    def init_state(self, batch_size: int) -> Any:
        return self.toeplitz.init_state(batch_size)

    def mix_token(self, x: Tensor, state: Any) -> tuple[Tensor, Any]:
        mixed, state = self.toeplitz.step(F.silu(self.value(x)), state)
        return self.out(silu_product(self.gate(x), mixed)), state


def gated_width(channels: int, expansion: float, option: str = "expansion") -> int:
    """Channels of a gate or a hidden layer: ``expansion * channels``, rounded. ValueError if that is less than 1."""
    width = round(expansion * channels)
    if width < 1:
        raise ValueError(f"{option} must give at least one channel, got {expansion} * {channels}")
    return width
