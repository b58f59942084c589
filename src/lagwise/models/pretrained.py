"""The base class of all models, with all but their forward pass: initial weights, sizes of vocabularies, shards."""

from __future__ import annotations

from typing import Any, Self

import torch
from torch import nn
from transformers import PreTrainedModel
from transformers import initialization as init

from lagwise.blocks import ChainBlock, QueryKey
from lagwise.blocks.chain import NEW_SHARES
from lagwise.blocks.prenorm import ScaleNorm
from lagwise.kernels import KernelLinear, LagKernel
from lagwise.mixers import ChunkedAttention, Mixer
from lagwise.models.cache import NAMES
from lagwise.models.configuration import LagwiseConfig
from lagwise.models.ngrams import resized
from lagwise.models.remote_code import LoadedSafely
from lagwise.models.sharded import require_shards


class LagwisePreTrainedModel(LoadedSafely, PreTrainedModel):
    config_class = LagwiseConfig
    config: LagwiseConfig
    base_model_prefix = "model"
    supports_gradient_checkpointing = True
    _no_split_modules = ["LagwiseLayer"]
    _skip_keys_device_placement = list(NAMES)

    def split_sequences(self, group: Any) -> None:
        """Have every process of a group give its contiguous shard of the same rows, in the order of the ranks, and
        get the outputs of its tokens: exactly those of whole rows.

        Shards may have different lengths. Packed rows are given by seq_idx. Every process must call the model as often
        as the others, with gradients or without. A loss is this process's share: the losses of all, added, are that of
        the whole rows; so are the gradients of parameters, which the caller adds over the processes.

        Args:
            group: A process group of `torch.distributed`, with as many processes as shards; None for whole rows again.

        Raises:
            ValueError: If a part of the model has no exact form for shards; the message names it.
        """
        if group is not None:
            require_shards(self)
        self.base_model._sequence_group = group

    def post_init(self) -> None:
        """Collect what the parts keep in float32, as transformers does for models that contain models."""
        self._keep_in_fp32_modules_strict = {n for part in self.modules() for n in getattr(part, "kept_in_float32", ())}
        super().post_init()

    def to_recurrent(self, tolerance: float = 1e-3, **options: Any) -> Self:
        """A copy with kernels as state spaces, which streams in constant memory. See `recurrent_form`, also for
        options."""
        from lagwise.models.conversion import recurrent_form

        return recurrent_form(self, tolerance, **options)[0]

    def get_correct_attn_implementation(self, requested_attention: str | None, is_init_check: bool = False) -> str:
        """Accept ``sdpa`` as a name of the only implementation, ``eager``."""
        chosen = "eager" if requested_attention == "sdpa" else requested_attention
        return super().get_correct_attn_implementation(chosen, is_init_check)

    def resize_token_embeddings(self, *args: Any, **kwargs: Any) -> nn.Embedding:
        """Resize as in transformers, and resize the other embeddings of ids too."""
        embedding = super().resize_token_embeddings(*args, **kwargs)
        model: Any = self.base_model
        count, std = embedding.num_embeddings, self.config.initializer_range
        if model.embed_matches is not None:
            model.embed_matches.resize(count, std)
        if model.embed_blocks is not None:
            model.embed_blocks = resized(model.embed_blocks, count, std)
        return embedding

    @torch.no_grad()
    def _init_weights(self, module: nn.Module) -> None:
        if isinstance(module, LagKernel | KernelLinear | Mixer | ChunkedAttention | QueryKey | ScaleNorm):
            if not is_loaded(module):
                module.reset_parameters()
        elif isinstance(module, ChainBlock):
            if module.shares is not None:
                init.copy_(module.shares, torch.tensor(NEW_SHARES).expand_as(module.shares))
        elif isinstance(module, nn.Linear | nn.Embedding | nn.Conv2d):
            init.normal_(module.weight, std=self.config.initializer_range)
            if not isinstance(module, nn.Embedding) and module.bias is not None:
                init.zeros_(module.bias)
        elif isinstance(module, nn.LayerNorm | nn.BatchNorm1d | nn.RMSNorm):
            if module.weight is not None:
                init.ones_(module.weight)
                if not isinstance(module, nn.RMSNorm):
                    init.zeros_(module.bias)
            if isinstance(module, nn.BatchNorm1d):
                buffers = dict(module.named_buffers())
                init.ones_(buffers.pop("running_var"))
                for buffer in buffers.values():
                    init.zeros_(buffer)


def is_loaded(module: nn.Module) -> bool:
    """Whether all parameters of a part come from a file. transformers before 5.16 calls `_init_weights` for such parts
    too, where only functions of its own leave them unchanged."""
    parameters = list(module.parameters())
    return bool(parameters) and all(getattr(each, "_is_hf_initialized", False) for each in parameters)
