"""Averaged weights: often better than the last ones, at the same inference cost."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from transformers import TrainerCallback

from lagwise.files import follow_umask, one_line

AVERAGES_FILE = "averages.safetensors"  # in a checkpoint, next to the weights


class AveragedWeights(TrainerCallback):
    """An exponential moving average of the weights over the training steps.

    Formula: after step t = 1, 2, ..., ``a <- d a + (1 - d) w`` with ``d = min(decay, (1 + t) / (10 + t))``, starting
    from the first weights; the second term lets the average forget these early. A decay of 0 keeps no average.

    Source: the averages of DeiT's training (arXiv:2012.12877, table 9), with TensorFlow's warm-up.
    """

    def __init__(self, model: nn.Module, decay: float):
        self.decay = decay
        self.weights = {n: p for n, p in model.named_parameters() if p.requires_grad} if decay else {}
        self.averages = {name: weight.detach().clone() for name, weight in self.weights.items()}

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        # the Trainer has moved the model to its device
        self.averages = {name: average.to(self.weights[name].device) for name, average in self.averages.items()}

    @torch.no_grad()
    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if self.decay:
            decay = min(self.decay, (1 + state.global_step) / (10 + state.global_step))
            weights: list[Tensor] = list(self.weights.values())
            torch._foreach_lerp_(list(self.averages.values()), weights, 1 - decay)

    @contextmanager
    def in_use(self) -> Iterator[None]:
        """A context in which the model has the averages as its weights."""
        self._exchange()
        try:
            yield
        finally:
            self._exchange()

    @torch.no_grad()
    def _exchange(self) -> None:
        for name, weight in self.weights.items():
            held = weight.clone()
            weight.copy_(self.averages[name])
            self.averages[name].copy_(held)

    def save(self, checkpoint: Path) -> None:
        if self.decay:
            save_file(self.averages, checkpoint / AVERAGES_FILE)
            follow_umask(checkpoint)

    def load(self, checkpoint: Path) -> None:
        """Load the averages of a checkpoint. ValueError if it has no averages of these weights."""
        if not self.decay:
            return
        path = checkpoint / AVERAGES_FILE
        found = read_tensors(path)
        if {n: a.shape for n, a in found.items()} != {n: a.shape for n, a in self.averages.items()}:
            raise ValueError(f"{str(path)!r} has averages of other weights than this model's")
        if not all(average.isfinite().all() for average in found.values()):
            raise ValueError(f"{str(path)!r} has averages that are not finite")
        self.averages = {name: found[name] for name in self.averages}


def read_tensors(path: Path, device: str = "cpu") -> dict[str, Tensor]:
    """The tensors of a checkpoint's file. ValueError if it is missing or damaged."""
    try:
        return load_file(path, device=device)
    except (OSError, SafetensorError) as error:
        raise ValueError(f"{str(path)!r} cannot be read ({one_line(error)})") from error
