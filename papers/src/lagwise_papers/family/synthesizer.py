"""Attention with weights that do not compare tokens."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from lagwise.mixers.base import Mixer, check_heads, masked
from lagwise.ops import Layout
from lagwise.ops.packing import from_first_token
from lagwise.tables import check_integer, known

FORMS = ("dense", "random")


class SynthesizerMixer(Mixer):
    """``W_o softmax(S) W_v x`` in each head, over ``j <= i`` when causal, with scores S that do not compare tokens.

    Options:
        heads: must divide the channels.
        max_length: longest text. Both forms have one number, or one output, per position, counted from a row's first
            real token.
        form: ``dense``, where each token scores all positions, ``S_i = W_2 relu(W_1 x_i)`` with separate W_1 and W_2
            for each head and a hidden layer as wide as a head, or ``random``, a learned matrix.

    ValueError for longer texts, heads that do not divide the channels, or options out of range. It does not stream.

    Source: Tay et al. 2021, "Synthesizer: Rethinking Self-Attention for Transformer Models", §3.1.
    """

    streams = False

    def __init__(
        self, channels: int, *, causal: bool = True, heads: int = 8, max_length: int = 1024, form: str = "dense"
    ):
        super().__init__(channels, causal)
        check_heads(channels, heads)
        self.heads, self.form = heads, known(form, FORMS, "form")
        self.max_length = check_integer("max_length", max_length)
        size = channels // heads
        self.hidden = nn.Linear(channels, channels) if form == "dense" else None
        self.scores = nn.Parameter(torch.empty(heads, size if form == "dense" else max_length, max_length))
        self.value = nn.Linear(channels, channels)
        self.out = nn.Linear(channels, channels)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draw from a normal distribution, with variance 1 / inputs, or 1 for ``random``."""
        nn.init.normal_(self.scores, std=1.0 if self.form == "random" else self.scores.shape[1] ** -0.5)

    def mix(self, x: Tensor, state: None, layout: Layout) -> tuple[Tensor, None]:
        return self.out(from_first_token(self._attend, x, layout.mask)), None

    def _attend(self, x: Tensor, mask: Tensor | None) -> Tensor:
        n, longest = x.shape[1], self.scores.shape[2]
        if n > longest:
            raise ValueError(f"the synthesizer scores {longest} places, got {n} tokens; set option max_length")
        if self.hidden is None:
            scores = self.scores[None, :, :n, :n]
        else:
            scores = self.hidden(x).relu().unflatten(2, (self.heads, -1)).transpose(1, 2) @ self.scores[:, :, :n]
        hidden = torch.zeros(1, 1, 1, n, dtype=torch.bool, device=x.device) if mask is None else ~mask[:, None, None]
        if self.causal:
            hidden = hidden | torch.ones(n, n, dtype=torch.bool, device=x.device).triu(1)
        weights = scores.masked_fill(hidden, torch.finfo(scores.dtype).min).softmax(3)
        value = masked(self.value(x), mask).unflatten(2, (self.heads, -1)).transpose(1, 2)
        return (weights.to(value.dtype) @ value).transpose(1, 2).flatten(2)
