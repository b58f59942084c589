"""One token of a language model as a function of tensors, for export and compilation."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from lagwise.files import one_line
from lagwise.mixers import Mixer
from lagwise.mixers.derived import frozen
from lagwise.mixers.state import eager_state, fixed_start, fixed_state, named_tensors, rebuilt
from lagwise.models.cache import StreamingCache
from lagwise.models.heads import VocabularyHead
from lagwise.models.ngrams import no_context
from lagwise.ops.streaming import OnlineFollower


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
        # Attributes of a cache about the tokens read, which the state includes.
        self.token_attributes = [
            *(["real"] if model.config.position_embedding != "none" else []),
            *(["recent"] if model.model.context_embeddings else []),
        ]
        self._require_fixed_shapes()
        self._tree = self._states(1)

    @torch.no_grad()
    def start(self, batch_size: int) -> dict[str, Tensor]:
        """The state before the first token."""
        return dict(named_tensors(self._states(batch_size)))

    def forward(self, tokens: Tensor, state: Mapping[str, Tensor]) -> tuple[Tensor, dict[str, Tensor]]:
        cache = self.model.model.new_cache()
        self._fill(cache, rebuilt(self._tree, iter(state.values())))
        logits = self.model(tokens[:, None], cache=cache, use_cache=True).logits
        return logits[:, -1], dict(named_tensors(self._cached_states(cache)))

    @torch.no_grad()
    def take(self, cache: StreamingCache) -> tuple[dict[str, Tensor], list[OnlineFollower]]:
        """Convert a cache that has seen at least one token to a state for `forward`, with its own memory.

        Returns the state and its followers.
        """
        state, followers = fixed_state(self._cached_states(cache), self._tree)
        return dict(named_tensors(state)), followers

    @torch.no_grad()
    def give(
        self, state: Mapping[str, Tensor], cache: StreamingCache, followers: Sequence[OnlineFollower] = ()
    ) -> None:
        """The inverse of `take`: write a state into a cache. The caller updates the cache's counts."""
        fixed = rebuilt(self._tree, iter(state.values()))
        self._fill(cache, eager_state(fixed, self._eager_states(1), iter(followers)))

    def _states(self, batch_size: int) -> tuple[Any, ...]:
        return fixed_start(self._eager_states(batch_size), online=self.online)

    def _eager_states(self, batch_size: int) -> tuple[Any, ...]:
        """The states of all layers before the first token, and of the attributes about tokens."""
        states = [part.init_state(batch_size) for part in self.model.model.streamed]
        if "real" in self.token_attributes:
            states.append((torch.zeros(batch_size, dtype=torch.long, device=self.model.device),))
        if "recent" in self.token_attributes:
            states.append((no_context(self.model.model.context_embeddings, batch_size, self.model.device),))
        return tuple(states)

    def _fill(self, cache: StreamingCache, states: Sequence[Any]) -> None:
        layers = len(cache.layers)
        for layer, held in zip(cache.layers, states[:layers], strict=True):
            layer.state = held  # type: ignore[attr-defined]
        for name, (held,) in zip(self.token_attributes, states[layers:], strict=True):
            setattr(cache, name, held)

    def _cached_states(self, cache: StreamingCache) -> tuple[Any, ...]:
        states = [layer.state for layer in cache.layers]  # type: ignore[attr-defined]
        return (*states, *((getattr(cache, name),) for name in self.token_attributes))

    @torch.no_grad()
    def _require_fixed_shapes(self) -> None:
        """ValueError, with its name, if a mixer has no step of fixed shapes, as may be in other packages."""
        weight = self.model.lm_head.weight
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


def tensor_versions(model: nn.Module) -> list[tuple[int, int]]:
    """Addresses and versions of a model's tensors. They change with the weights, except for changes through
    ``.data``."""
    tensors = (*model.parameters(), *model.buffers())
    return [(t.data_ptr(), 0 if t.is_inference() else t._version) for t in tensors]
