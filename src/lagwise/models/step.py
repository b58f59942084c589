"""One token of a language model as a function of tensors, for export and compilation."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from lagwise.blocks.chain import ChainState
from lagwise.blocks.mega import MegaState
from lagwise.mixers.fixed_forms import fixed_form
from lagwise.mixers.fixed_online import FixedOnline, OnlineFollower
from lagwise.models.cache import StreamingCache
from lagwise.models.causal_lm import LagwiseForCausalLM
from lagwise.models.ngrams import no_context
from lagwise.ops.streaming import online_block


class StreamingStep(nn.Module):
    """``(tokens, state) -> (logits, state)``: the forward pass of a language model for one token per row.

    Shapes: tokens ``(batch,)``; logits ``(batch, vocab_size)``; state, a dict of real tensors of fixed shapes with the
    batch first and names such as ``0.memory.average`` (of layer 0). All are zero before the first token.

    The module is the model in evaluation mode with a `FixedMixer` in place of every mixer that has a state. Weights are
    shared, but tensors derived from weights are computed once, so create a new step after the weights change. The
    model's length limit is not checked. In a graph that is being exported, the step also accepts several tokens per
    row, ``(batch, length)``, and returns logits ``(batch, length, vocab_size)``.

    Args:
        model: The language model.
        online: Compute the long blocks of exact kernels outside the graph. Kernels of any support then cost O(log² n)
            per token. The caller must call ``advance`` of the followers that `take` returns after every step, and must
            copy the returned state into the tensors that it passed in.

    Raises:
        ValueError: If the model's state grows with the text: with full attention or, unless online, with a kernel of
            infinite support.
    """

    def __init__(self, model: LagwiseForCausalLM, *, online: bool = False):
        super().__init__()
        self.model, self.fixed = fixed_form(model, model.lm_head.weight, online=online)
        vars(self.model).pop("forward", None)  # remove wrappers, which would call the original model
        own = {id(parameter): name for name, parameter in model.named_parameters()}
        names = ((name, own.get(id(p))) for name, p in self.named_parameters(remove_duplicate=False))
        self.shared = {name: other for name, other in names if other is not None}  # by their names in the model
        # Attributes of a cache about the tokens read, which the state includes.
        self.token_attributes = [
            *(["real"] if model.config.position_embedding != "none" else []),
            *(["recent"] if model.model.context_embeddings else []),
        ]
        self._tree = self._states(1)

    @torch.no_grad()
    def start(self, batch_size: int) -> dict[str, Tensor]:
        """The state before the first token."""
        return dict(_leaves(self._states(batch_size)))

    def forward(self, tokens: Tensor, state: Mapping[str, Tensor]) -> tuple[Tensor, dict[str, Tensor]]:
        cache = StreamingCache(len(self.model.model.layers))
        self._fill(cache, state, lambda held: held)
        several = tokens.dim() == 2
        ids = tokens if several else tokens[:, None]
        logits = self.model(ids, past_key_values=cache, use_cache=True).logits
        return logits if several else logits[:, -1], self._read(cache, lambda held: held)

    @torch.no_grad()
    def take(self, cache: StreamingCache) -> tuple[dict[str, Tensor], list[OnlineFollower]]:
        """Convert a cache that has seen at least one token to a state for `forward`, with its own memory.

        Returns the state and its followers.
        """
        makers, likes, followers = iter(self.fixed), self._mixer_states(), []

        def taken(held: Any) -> Any:
            maker = next(makers)
            online = isinstance(maker, FixedOnline)
            held = online_block(held) if online else held  # once for the fixed state and its follower
            fixed = _owned(maker.take(held), like=next(likes))
            if online:
                followers.append(OnlineFollower(held, fixed))
            return fixed

        state = self._read(cache, taken)
        for name in list(state)[len(state) - len(self.token_attributes) :]:
            state[name] = state[name].clone()
        return state, followers

    @torch.no_grad()
    def give(
        self, state: Mapping[str, Tensor], cache: StreamingCache, followers: Sequence[OnlineFollower] = ()
    ) -> None:
        """The inverse of `take`: write a state into a cache. The caller updates the cache's counts."""
        makers, left = iter(self.fixed), iter(followers)

        def given(held: Any) -> Any:
            maker = next(makers)
            return next(left).stopped() if isinstance(maker, FixedOnline) else maker.give(held)

        self._fill(cache, state, given)

    def _states(self, batch_size: int) -> list[Any]:
        layers: Any = self.model.model.layers
        states = [layer.block.init_state(batch_size) for layer in layers]
        if "real" in self.token_attributes:
            states.append((torch.zeros(batch_size, dtype=torch.long, device=self.model.device),))
        if "recent" in self.token_attributes:
            states.append((no_context(self.model.model.context_embeddings, batch_size, self.model.device),))
        return states

    def _mixer_states(self) -> Iterator[Any]:
        """The states of mixers before the first token, in order."""
        found: list[Any] = []
        for state in self._tree[: len(self.model.model.layers)]:
            _mapped(state, found.append)
        return iter(found)

    def _fill(self, cache: StreamingCache, state: Mapping[str, Tensor], change: Callable[[Any], Any]) -> None:
        states = _rebuilt(self._tree, iter(state.values()))
        layers = len(cache.layers)
        for layer, held in zip(cache.layers, states[:layers], strict=True):
            layer.state = _mapped(held, change)  # type: ignore[attr-defined]
        for name, (held,) in zip(self.token_attributes, states[layers:], strict=True):
            setattr(cache, name, held)

    def _read(self, cache: StreamingCache, change: Callable[[Any], Any]) -> dict[str, Tensor]:
        states = [_mapped(layer.state, change) for layer in cache.layers]  # type: ignore[attr-defined]
        states += [(getattr(cache, name),) for name in self.token_attributes]
        return dict(_leaves(states))


def tensor_versions(model: nn.Module) -> list[tuple[int, int]]:
    """Addresses and versions of a model's tensors. They change with the weights, except for changes through
    ``.data``."""
    tensors = (*model.parameters(), *model.buffers())
    return [(t.data_ptr(), 0 if t.is_inference() else t._version) for t in tensors]


def _leaves(state: Any, name: str = "") -> Iterator[tuple[str, Tensor]]:
    """Yield the names and tensors of nested tuples, in order, without None."""
    if isinstance(state, Tensor):
        yield name, state
    elif state is not None:
        parts = enumerate(state) if type(state) in (tuple, list) else state._asdict().items()
        for key, part in parts:
            yield from _leaves(part, f"{name}.{key}" if name else str(key))


def _rebuilt(like: Any, tensors: Iterator[Tensor]) -> Any:
    """Nested tuples with the same structure and other tensors."""
    if like is None:
        return None
    if isinstance(like, Tensor):
        return next(tensors)
    parts = [_rebuilt(part, tensors) for part in like]
    return type(like)(parts) if type(like) in (tuple, list) else type(like)(*parts)


def _owned(state: Any, like: Any) -> Any:
    """Nested tuples with contiguous copies of the tensors, which can be modified in place, in the types of another
    state: a prompt read under autocast has others than those that steps are made for."""
    pairs = zip(_leaves(state), _leaves(like), strict=True)
    copies = (tensor.to(wanted.dtype, copy=True).contiguous() for (_, tensor), (_, wanted) in pairs)
    return _rebuilt(state, copies)


def _mapped(state: Any, change: Callable[[Any], Any]) -> Any:
    """A block's state with ``change`` applied to the states of its mixers, in order."""
    if isinstance(state, MegaState):
        return MegaState(*(_mapped(part, change) for part in state))
    if isinstance(state, ChainState):
        return ChainState(tuple(_mapped(part, change) for part in state.states))
    return change(state)
