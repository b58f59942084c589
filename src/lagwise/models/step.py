"""One token of a language model as a function of tensors: for export, and in place for streams on fixed tensors."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from lagwise.files import one_line
from lagwise.mixers import Mixer
from lagwise.mixers.derived import frozen
from lagwise.mixers.state import eager_state, fixed_start, fixed_state, named_tensors, rebuilt
from lagwise.models.cache import StreamingCache
from lagwise.models.heads import VocabularyHead
from lagwise.models.inputs import check_ids
from lagwise.ops.streaming import OnlineFollower

#: Maps the last tokens ``(batch,)`` to logits ``(batch, vocab_size)``, and updates its own state tensors.
Run = Callable[[Tensor], Tensor]
# Arguments of a language model's forward that have no effect on a streaming step.
_OF_A_STEP = {"input_ids", "cache", "attention_mask", "use_cache", "return_dict", "logits_to_keep"}
_OF_A_STEP |= {"position_ids", "cache_position"}


class StreamingStep(nn.Module):
    """``(tokens, state) -> (logits, state)``: the forward pass of a language model for one token per row.

    Shapes: tokens ``(batch,)``; logits ``(batch, vocab_size)``; state, a dict of real tensors of fixed shapes with the
    batch first and names such as ``0.memory.average`` (of layer 0). All are zero before the first token.

    The module is the model in evaluation mode, which runs on states of fixed shapes (`lagwise.mixers.state`). Weights
    are shared, but tensors derived from weights are computed once, so create a new step after the weights change. The
    model's length limit is not checked.

    Args:
        model: The language model.
        online: Compute the long blocks of exact kernels outside the graph. Kernels of any support then cost O(log² n)
            per token. The caller must call ``advance`` of the followers that `take` returns after every step, and must
            copy the returned state into the tensors that it passed in.

    Raises:
        ValueError: If the model's state grows with the text: with full attention or, unless online, with a kernel of
            infinite support; if a mixer changes the shapes of its state, or has complex numbers in it.
    """

    def __init__(self, model: VocabularyHead, *, online: bool = False):
        super().__init__()
        for mixer in model.modules():
            if isinstance(mixer, Mixer):
                mixer.require_causal()
                mixer.require_fixed(online=online)
        self.online = online
        self.model = frozen(model, "online" if online else "fixed")
        vars(self.model).pop("forward", None)  # remove wrappers, which would call the original model
        self._require_fixed_shapes()
        self._tree = self._start(1)

    @torch.no_grad()
    def start(self, batch_size: int) -> dict[str, Tensor]:
        """The state before the first token."""
        return dict(named_tensors(self._start(batch_size)))

    def forward(self, tokens: Tensor, state: Mapping[Any, Tensor]) -> tuple[Tensor, dict[str, Tensor]]:
        cache = self.model.model.new_cache()
        cache.states = rebuilt(self._tree, iter(state.values()))
        logits = self.model(tokens[:, None], cache=cache, use_cache=True).logits
        return logits[:, -1], dict(named_tensors(tuple(cache.states)))

    @torch.no_grad()
    def take(self, cache: StreamingCache) -> tuple[dict[str, Tensor], list[OnlineFollower]]:
        """Convert a cache that has seen at least one token to a state for `forward`, with its own memory.

        Returns the state and its followers.
        """
        state, followers = fixed_state(tuple(cache.states), self._tree)
        return dict(named_tensors(state)), followers

    @torch.no_grad()
    def give(self, state: Sequence[Tensor], cache: StreamingCache, followers: Sequence[OnlineFollower] = ()) -> None:
        """The inverse of `take`: write a state into a cache. The caller updates the cache's counts."""
        fixed = rebuilt(self._tree, iter(state))
        cache.states = eager_state(fixed, self.model.model.init_states(1), iter(followers))

    def _start(self, batch_size: int) -> tuple[Any, ...]:
        return fixed_start(self.model.model.init_states(batch_size), online=self.online)

    @torch.no_grad()
    def _require_fixed_shapes(self) -> None:
        """Raise ValueError, with its name, if a mixer has no step of fixed shapes, as may be in other packages."""
        weight = next(self.model.parameters())
        for mixer in self.model.modules():
            if not isinstance(mixer, Mixer):
                continue
            token = torch.zeros(1, mixer.channels, dtype=weight.dtype, device=weight.device)
            try:
                before = fixed_start(mixer.init_state(1), online=self.online)
                after = mixer.step(token, before)[1]
            except Exception as error:
                raise ValueError(f"{type(mixer).__name__} has no step of fixed shapes: {one_line(error)}") from error
            shapes = [[(name, t.shape, t.dtype) for name, t in named_tensors(state)] for state in (before, after)]
            if shapes[0] != shapes[1] or any(t.is_complex() for _, t in named_tensors(before)):
                raise ValueError(
                    f"{type(mixer).__name__} has no step of fixed shapes: a state must be a named tuple of real "
                    "tensors, whose shapes and types a step keeps; declare `grows = True` if it grows with the text"
                )


class InPlaceStep:
    """A language model's online step on fixed tensors, which it changes in place. It runs eagerly; `CompiledStep` and
    `GraphStep` run it as compiled code and as a CUDA graph. batch_size: rows of the batch, or None for any number."""

    def __init__(self, model: VocabularyHead, batch_size: int | None, step: StreamingStep):
        self.batch_size, self.device = batch_size, model.device
        self.use(model, step)

    def runner(self, state: list[Tensor]) -> Run:
        """The step of one stream, which changes these tensors in place."""
        step = InPlace(self.step)
        return lambda tokens: step(tokens, *state)

    def use(self, model: VocabularyHead, step: StreamingStep) -> bool:
        """Take the weights of a step. Returns whether this form can run it, which a changed model may prevent."""
        self.step, self._weights = step, _versions(model)
        return True

    def answer(self, model: VocabularyHead, inputs: Mapping[str, Any]) -> Tensor | None:
        """Logits ``(batch, 1, vocab_size)`` for arguments of the model's forward, or None if `follow` returns None."""
        if any(name not in _OF_A_STEP and value is not None and value is not False for name, value in inputs.items()):
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
        if stream is None or stream.owner is not self:
            if self._weights != _versions(model) and not self.use(model, StreamingStep(model, online=True)):
                return None
            stream = InPlaceStream(self, cache)
        check_ids("input_ids", ids, model.config.vocab_size)
        return stream.step(ids[:, 0].long().contiguous())  # dtype and layout of the example inputs


class InPlaceStream:
    """The state of a cache while an `InPlaceStep` updates it. The cache's own states are stale until `stop`."""

    def __init__(self, owner: InPlaceStep, cache: StreamingCache):
        self.owner, self.cache, self.step_of = owner, cache, owner.step
        with torch.inference_mode(False):  # the tensors outlive the present inference mode
            state, self.followers = self.step_of.take(cache)
        self.state = list(state.values())
        assert all(tensor.is_contiguous() for tensor in self.state)
        self.run = owner.runner(self.state)
        cache.carry_on(self)

    def step(self, token: Tensor) -> Tensor:
        """Return the logits after one more token per row."""
        logits = self.run(token)
        self.cache.seen += 1
        for follower in self.followers:
            follower.advance()
        return logits

    def stop(self) -> None:
        """Write the states back into the cache."""
        self.cache.carry_on(None)
        self.step_of.give(self.state, self.cache, self.followers)


class InPlace(nn.Module):
    """The step with its state as positional arguments, which are overwritten with the new state."""

    def __init__(self, step: StreamingStep):
        super().__init__()
        self.step = step

    def forward(self, tokens: Tensor, *state: Tensor) -> Tensor:
        logits, after = self.step(tokens, dict(enumerate(state)))
        for old, new in zip(state, after.values(), strict=True):
            if new is not old:
                old.copy_(new)
        return logits


def _versions(model: nn.Module) -> list[tuple[int, int]]:
    """Return addresses and versions of a model's tensors. They change with the weights, except for changes through
    ``.data``."""
    tensors = (*model.parameters(), *model.buffers())
    return [(t.data_ptr(), 0 if t.is_inference() else t._version) for t in tensors]
