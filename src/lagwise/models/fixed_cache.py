"""A cache with fixed shapes, for graphs that exporters make of `generate`."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import torch
from torch import Tensor
from torch.func import functional_call
from torch.utils import _pytree as pytree

from lagwise.mixers.state import select_rows
from lagwise.models.cache import RowCache
from lagwise.models.inputs import surplus_argument
from lagwise.models.step import StreamingStep
from lagwise.ops.operators import exporting


class FixedCache(RowCache):
    """The state of a `StreamingStep`, for ``generate(cache_implementation="static")``.

    ``state`` is a dict of real tensors of fixed shapes, or None before the first token. As a pytree the cache consists
    of these tensors. ``seen`` counts the tokens of an eager stream; caches returned from a graph do not have the count.
    """

    def __init__(self, state: dict[str, Tensor] | None = None):
        super().__init__(layers=[])
        self.state, self.seen = state, 0
        self.model = None

    def advance(self, model: Any, step: StreamingStep, inputs: Mapping[str, Any]) -> Tensor:
        """Process tokens and update the state: a prompt as a whole, later tokens one by one.

        Args:
            model: The language model.
            step: Its step.
            inputs: Arguments of the model's forward.

        Returns:
            Logits ``(batch, length, vocab_size)``.

        Raises:
            ValueError: If a prompt is padded on the right, or tokens after it (in a graph, any tokens) are padded; if
                an argument is not supported by a step; for another model or number of rows than those of the prompt.
        """
        if exporting():
            return self._traced(model, step, inputs)
        if self.state is None:
            cache = model.model.new_cache()
            given = {**inputs, "past_key_values": cache, "use_cache": True, "return_dict": True}
            logits = type(model).forward(model, **given).logits  # exporters record calls of the model's own forward
            cache.require_no_right_padding()
            self.state, self.seen, self.model = step.take(cache)[0], cache.seen, cache.model
            return logits
        _require_plain(inputs)
        self.require_continues(len(inputs["input_ids"]), model.model.number)
        ids, mask, limit = inputs["input_ids"], inputs.get("attention_mask"), model.length_limit
        if mask is not None and not mask[:, -ids.shape[1] :].all():
            raise ValueError("only prompts may be padded with cache_implementation='static'")
        if limit is not None and self.seen + ids.shape[1] > limit:
            raise ValueError(f"this model takes at most {limit} tokens, got {self.seen + ids.shape[1]}")
        rows = []
        for tokens in ids.unbind(1):
            logits, self.state = step(tokens, self.state)
            rows.append(logits)
        self.seen += len(rows)
        return torch.stack(rows, 1)

    @property
    def rows(self) -> int | None:  # type: ignore[override]
        """Batch size, which is the first axis of every tensor of the state."""
        return next(iter(self.state.values())).shape[0] if self.state else None

    def _traced(self, model: Any, step: StreamingStep, inputs: Mapping[str, Any]) -> Tensor:
        """`advance` in a graph that is being exported. It always uses the step, for prompts too."""
        _require_plain(inputs)
        if inputs.get("attention_mask") is not None:
            raise ValueError("padding (attention_mask) cannot be exported; use prompts of one length, without a mask")
        ids = inputs["input_ids"]
        state = start = step.start(ids.shape[0])
        if self.state is not None:
            state = self.state
            # The comparison also tells exporters with dynamic shapes that these sizes are fixed.
            if {name: t.shape[1:] for name, t in state.items()} != {name: t.shape[1:] for name, t in start.items()}:
                raise ValueError("past_key_values belongs to another model")
        own = dict(model.named_parameters())  # the graph's weights are those of the model that is exported
        weights = {name: own[other] for name, other in step.shared.items()}
        logits, self.state = functional_call(step, weights, (ids, state))
        return logits

    def get_seq_length(self, layer_idx: int = 0) -> int:
        return self.seen

    def get_mask_sizes(self, query_length: Any, layer_idx: int = 0) -> tuple[int, int]:
        return self.seen + (query_length if isinstance(query_length, int) else len(query_length)), 0

    @property
    def is_compileable(self) -> bool:
        return False

    def reset(self) -> None:
        self.state, self.seen, self.model = None, 0, None

    def crop(self, *args: Any, **kwargs: Any) -> None:
        raise ValueError("a static cache cannot be rolled back; assisted decoding needs cache_implementation='dynamic'")

    activate_past_recording = crop

    def batch_select_indices(self, indices: Tensor) -> None:
        if self.state is not None:
            self.state = {name: select_rows(tensor, indices) for name, tensor in self.state.items()}


def _require_plain(inputs: Mapping[str, Any]) -> None:
    if (name := surplus_argument(inputs)) is not None:
        raise ValueError(f"{name} is not supported in a step with cache_implementation='static'")


def _flatten(cache: FixedCache) -> tuple[list[Tensor], list[str] | None]:
    return list((cache.state or {}).values()), None if cache.state is None else list(cache.state)


def _flatten_with_keys(cache: FixedCache) -> tuple[list[tuple[Any, Tensor]], list[str] | None]:
    tensors, names = _flatten(cache)
    return [(pytree.MappingKey(name), tensor) for name, tensor in zip(names or (), tensors, strict=True)], names


def _unflatten(tensors: Iterable[Any], names: list[str] | None) -> FixedCache:
    return FixedCache(None if names is None else dict(zip(names, tensors, strict=True)))


pytree.register_pytree_node(
    FixedCache,
    _flatten,
    _unflatten,
    serialized_type_name="lagwise.FixedCache",
    flatten_with_keys_fn=_flatten_with_keys,
)
