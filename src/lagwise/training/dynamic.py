"""Dynamic evaluation: a language model learns from the text that it is scored on, after each score."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from lagwise.evaluation.perplexity import Score, finite, windows
from lagwise.models.cache import CarriedStates
from lagwise.training.optimizer import AdamW, sparse_tables
from lagwise.training.recipe import TrainingOptions

SEGMENT = 512  # tokens of a gradient; fewer in shorter windows
_BETA2 = 0.999  # decay of the mean squares of gradients


def token_nats(model: Any, ids: Tensor, targets: Tensor, cache: Any) -> Tensor:
    """Negative log-probabilities ``(n,)`` of the tokens after each of ids ``(n,)``, which continue a cache, or None."""
    hidden = model.model(input_ids=ids[None], cache=cache, use_cache=cache is not None).last_hidden_state
    return F.cross_entropy(model.to_logits(hidden[0]).float(), targets, reduction="none")


class OnlineLearner:
    """Scores the tokens of a text and then learns from them, with the weights of the model in memory.

    Formula, after every `SEGMENT` tokens with the gradient g of their mean loss: ``v <- b v + (1 - b) g**2`` and
    ``w <- w - rate * g / (sqrt(v / (1 - b**step)) + 1e-8)``, where b is 0.999. Rows of n-gram tables are changed only
    where the tokens read them. A token's score never depends on itself or on later tokens.

    Args:
        model: The language model, in evaluation mode. Its tables must have sparse gradients (`sparse_tables`), or all
            of their rows are updated.
        rate: The learning rate.

    Source: Krause et al. 2018, "Dynamic evaluation of neural sequence models", eq. 8, with mean squares of the
    gradients of the text itself instead of those of the training set, and without decay towards the trained weights.
    """

    def __init__(self, model: Any, rate: float):
        self.model, self.waiting = model, 0
        self.parameters = [p for p in model.parameters() if p.requires_grad]
        self.optimizer = AdamW(self.parameters, lr=rate, betas=(0.0, _BETA2), eps=1e-8, weight_decay=0, fused=True)

    @torch.enable_grad()
    def nats(self, ids: Tensor, targets: Tensor, cache: Any) -> Tensor:
        """`token_nats`, from the weights before these tokens are learned."""
        nats = token_nats(self.model, ids, targets, cache)
        (nats.sum() / SEGMENT).backward()
        self.waiting += len(targets)
        if self.waiting >= SEGMENT:
            self.learn()
        return nats.detach()

    def learn(self) -> None:
        """Take the step for all tokens that have been scored and not yet learned."""
        if self.waiting:
            self.optimizer.step()
            self.optimizer.zero_grad()
            self.waiting = 0

    def tensors(self) -> dict[str, Tensor]:
        """Return all that is learned, by name, after learning what waits."""
        self.learn()
        tensors = {f"weight:{i}": parameter.detach() for i, parameter in enumerate(self.parameters)}
        for i, parameter in enumerate(self.parameters):
            if state := self.optimizer.state.get(parameter):
                tensors |= {f"square:{i}": state["exp_avg_sq"], f"step:{i}": state["step"]}
        return tensors

    @torch.no_grad()
    def restore(self, saved: Mapping[str, Tensor]) -> None:
        """Continue from `tensors`."""
        for i, parameter in enumerate(self.parameters):
            parameter.copy_(saved[f"weight:{i}"])
            if f"step:{i}" in saved:
                state = {"step": saved[f"step:{i}"], "exp_avg_sq": saved[f"square:{i}"]}
                self.optimizer.state[parameter] = {**state, "exp_avg": torch.zeros_like(parameter)}


def dynamic_score(
    model: Any, tokens: np.ndarray, length: int, sizes: np.ndarray, *, rate: float, progress: bool = False
) -> Score:
    """`lagwise.evaluation.evaluate`, where the model learns from each segment after its score. The windows and the
    tokens in the context of each token are the same. Afterwards the model has its own weights again.

    A model without states of constant size learns after each window. Arguments and errors otherwise as there.
    """
    before = [p.detach().clone() for p in model.parameters()]
    stream, device, nats = torch.from_numpy(tokens.astype(np.int64)), model.device, 0.0
    try:
        carried, size = CarriedStates(model, "dynamic evaluation", changes=True), SEGMENT
    except ValueError:
        carried, size = None, length
    try:
        with sparse_tables(model, TrainingOptions()):
            learner = OnlineLearner(model, rate)
            for rows in windows(model, length, stream[:-1], stream[1:], progress=progress):
                for x, y in zip(*(row.to(device) for row in rows), strict=True):
                    if carried is not None:
                        carried.caches.clear()
                    for start in range(0, len(x), size):
                        part = slice(start, start + size)
                        cache: Any = None if carried is None else carried.before(0)
                        nats += learner.nats(x[part], y[part], cache).double().sum().item()
                        if carried is not None and cache is not None:
                            carried.after(0, cache)
    finally:
        with torch.no_grad():
            for parameter, value in zip(model.parameters(), before, strict=True):
                parameter.copy_(value)
                parameter.grad = None
    return Score(length, len(tokens) - 1, finite(nats, length), round(sizes[tokens[1:]].sum()))
