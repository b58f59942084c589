"""A streaming step that runs on fixed tensors, which it changes in place: the base of compiled code and CUDA graphs."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from lagwise.mixers.state import select_rows
from lagwise.models.cache import StreamingCache
from lagwise.models.heads import VocabularyHead
from lagwise.models.inputs import check_vocabulary, surplus_argument
from lagwise.models.step import StreamingStep, tensor_versions
from lagwise.ops.streaming import OnlineFollower

#: from the last tokens ``(batch,)`` to logits ``(batch, vocab_size)``, with the state in tensors of its own
Run = Callable[[Tensor], Tensor]


class InPlaceStep:
    """A language model's `StreamingStep` in another form. Abstract: subclasses implement `runner` and `renewed`.

    Args:
        model: The language model.
        batch_size: Rows of the batch, or None for any number.
        step: The model's step.
    """

    def __init__(self, model: VocabularyHead, batch_size: int | None, step: StreamingStep):
        self.batch_size, self.device = batch_size, model.device
        self.use(model, step)

    def runner(self, state: list[Tensor]) -> Run:
        """The step of one stream, which changes these tensors in place."""
        raise NotImplementedError

    def renewed(self, model: VocabularyHead) -> StreamingStep | None:
        """The step of a model whose weights have changed; None if this form no longer fits it."""
        raise NotImplementedError

    def use(self, model: VocabularyHead, step: StreamingStep) -> None:
        """Take the weights of a step."""
        self.step, self._weights, self._vocabulary = step, tensor_versions(model), model.config.vocab_size

    def answer(self, model: VocabularyHead, inputs: Mapping[str, Any]) -> Tensor | None:
        """Logits ``(batch, 1, vocab_size)`` for arguments of the model's forward, or None if `follow` returns None."""
        if surplus_argument(inputs) is not None:
            return None
        mask = inputs.get("attention_mask")
        if model.config.output_hidden_states or (mask is not None and not mask[:, -1].all()):
            return None
        logits = self.follow(model, inputs["input_ids"], inputs.get("cache"))
        return None if logits is None else logits[:, None]

    def follow(self, model: VocabularyHead, ids: Tensor, cache: Any) -> Tensor | None:
        """Process ids if they are one further token per row of a `StreamingCache`, and update the cache.

        Returns logits ``(batch, vocab_size)``, or None if this step does not apply. The caller then runs the model
        itself, which raises any error.
        """
        rows = len(ids) if self.batch_size is None else self.batch_size
        if ids.shape != (rows, 1) or ids.device != self.device or not isinstance(cache, StreamingCache):
            return None
        if torch.is_grad_enabled() or model.training or cache.rows != rows or cache.seen == 0:
            return None
        if cache.model != model.model.number or cache.seen == model.model.length_limit or cache.past is not None:
            return None
        stream = cache.stream
        if stream is None or stream.held is not self:
            cache.require_no_right_padding()
            if not self._current(model):
                return None
            stream = InPlaceStream(self, cache)
        if ids.device.type == "cpu":  # elsewhere the host would wait for the values
            check_vocabulary(ids, self._vocabulary)
        cache.note_padding(None)
        return stream.step(ids[:, 0].long().contiguous())  # as in the example inputs

    def _current(self, model: VocabularyHead) -> bool:
        """Take the model's weights again if they have changed. Returns whether the step still fits the model."""
        if self._weights == tensor_versions(model):
            return True
        step = self.renewed(model)
        if step is None:
            return False
        self.use(model, step)
        return True


class InPlaceStream:
    """The state of a cache while an `InPlaceStep` updates it. The cache's own states are stale until `stop`."""

    def __init__(self, held: InPlaceStep, cache: StreamingCache):
        self.held, self.cache, self.maker = held, cache, held.step
        state, self.followers = self._take(cache)
        self.names = list(state)
        self._use(list(state.values()))
        cache.carry_on(self)

    def _use(self, state: list[Tensor]) -> None:
        self.state, self.run = state, self.held.runner(state)

    def step(self, token: Tensor) -> Tensor:
        """Return the logits after one more token per row."""
        logits = self.run(token)
        for layer in self.cache.layers:
            layer.seen += 1  # type: ignore[attr-defined]
        for follower in self.followers:
            follower.advance()
        return logits

    def select_rows(self, rows: Tensor) -> bool:
        """Keep these rows. Returns False if that needs `stop` and the cache's own states."""
        if self.followers or self.held.batch_size is not None:
            return False
        with torch.inference_mode(False), torch.no_grad():
            self._use([select_rows(tensor, rows).contiguous() for tensor in self.state])
        return True

    def join(self, before: Sequence[StreamingCache], after: Sequence[StreamingCache], cache: StreamingCache) -> bool:
        """Join the rows of other caches before and after this one's, as the state of a new cache.

        The old caches stay valid. Returns False if the join needs the caches' own states.
        """
        if self.followers or self.held.batch_size is not None:
            return False
        states = [[*self._take(each)[0].values()] for each in (*before, *after)]
        states.insert(len(before), self.state)
        stream = copy.copy(self)
        with torch.inference_mode(False), torch.no_grad():
            stream._use([torch.cat(each) for each in zip(*states, strict=True)])
        stream.cache = cache
        cache.carry_on(stream)
        return True

    def _take(self, cache: StreamingCache) -> tuple[dict[str, Tensor], list[OnlineFollower]]:
        with torch.inference_mode(False):  # the tensors outlive the present inference mode
            state, followers = self.maker.take(cache)
        assert all(tensor.is_contiguous() for tensor in state.values())
        return state, followers

    def stop(self) -> None:
        """Write the states back into the cache."""
        self.cache.carry_on(None)
        self.maker.give(dict(zip(self.names, self.state, strict=True)), self.cache, self.followers)


class InPlace(nn.Module):
    """The step with its state as positional arguments, which are overwritten with the new state."""

    def __init__(self, step: StreamingStep, names: list[str]):
        super().__init__()
        self.step, self.names = step, names

    def forward(self, tokens: Tensor, *state: Tensor) -> Tensor:
        logits, after = self.step(tokens, dict(zip(self.names, state, strict=True)))
        for old, new in zip(state, after.values(), strict=True):
            if new is not old:
                old.copy_(new)
        return logits
