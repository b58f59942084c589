"""A causal language model as torchtitan trains it: built without memory, sharded, and only then initialised."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.fsdp import CPUOffloadPolicy, FSDPModule, MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import DTensor, distribute_tensor
from torchtitan.components.checkpointer.utils import canonical_fqn
from torchtitan.config import TORCH_DTYPE_MAP
from torchtitan.protocols.model import BaseModel
from torchtitan.protocols.state_dict_adapter import StateDictAdapter

from lagwise.kernels import LagKernel
from lagwise.mixers import Mixer
from lagwise.models import LagwiseConfig, LagwiseForCausalLM
from lagwise.models.loading import read_config

_REFUSED = ("tensor", "pipeline", "context", "expert")  # kinds of parallelism
_OPERATIONS = 6  # of a training step for each weight and token: two forward, four backward


class TitanLM(LagwiseForCausalLM):
    """`LagwiseForCausalLM` that returns its logits ``(batch, length, vocab_size)``, or the inputs of its output layer
    where torchtitan computes the loss in chunks. Weights have the same names.

    positions ``(batch, length)``, which torchtitan's loaders of text give, separate documents where they start again.
    seed: of the weights.
    """

    _skip_lm_head = False
    seed = 0

    def forward(self, tokens: Tensor, positions: Tensor | None = None) -> Tensor:
        hidden = self._transformed(self.read(tokens, position_ids=positions).last_hidden_state)
        return hidden if self._skip_lm_head else self.lm_head(hidden)

    def verify_module_protocol(self) -> None:
        """Accept ordinary modules: `parallelize` and `init_weights` do what torchtitan's protocol is for."""

    @torch.no_grad()
    def init_weights(self, **where: Any) -> None:
        """Initialise weights that have memory but no values, as torchtitan asks with a ``buffer_device``: to those of
        the seed, for any number of processes. Each computes every layer, one at a time, and keeps its shards."""
        if not where:  # the constructor asks
            super().init_weights()
            return
        self.tie_weights()
        own = {canonical_fqn(name): part for name, part in (*self.named_parameters(), *self.named_buffers())}
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(self.seed)
            for name, whole in _initialised(self.config):
                part = own.pop(name)
                if isinstance(part, DTensor):
                    whole = distribute_tensor(whole, part.device_mesh, part.placements, src_data_rank=None).to_local()
                    part = part.to_local()
                part.copy_(whole)
        assert not own, own.keys()


def _initialised(config: LagwiseConfig) -> Iterator[tuple[str, Tensor]]:
    """Yield names and values of a new model's weights and buffers on the CPU, with one layer at a time in memory."""
    with torch.device("meta"):
        whole = LagwiseForCausalLM(config)
    layers, whole.model.layers = whole.model.layers, nn.ModuleList()
    for prefix, part in [*((f"model.layers.{i}.", layer) for i, layer in enumerate(layers)), ("", whole)]:
        part.to_empty(device="cpu").apply(whole._init_weights)
        whole.tie_weights()
        yield from ((prefix + name, value) for name, value in (*part.named_parameters(), *part.named_buffers()))
        part.to("meta")  # type: ignore[bad-argument-type]


@dataclass(kw_only=True, slots=True)
class ModelConfig(BaseModel.Config):
    """The model of torchtitan's configuration, by the fields of `LagwiseConfig`. Without any, it is that of the folder
    ``hf_assets_path``."""

    fields: dict[str, Any] = field(default_factory=dict)
    seed: int = 0

    def lagwise(self) -> LagwiseConfig:
        """Return the model's configuration."""
        return LagwiseConfig(**self.fields)

    def build(self, **kwargs: Any) -> TitanLM:
        model = TitanLM(self.lagwise())
        model.seed = self.seed
        return model

    def update_from_config(self, *, config: Any, **kwargs: Any) -> None:
        """Take what depends on the other options. ValueError for options that lagwise's models do not have."""
        for kind in _REFUSED:
            if (degree := getattr(config.parallelism, f"{kind}_parallel_degree")) > 1:
                advice = "; `sequence_parallel` of lagwise's own training splits sequences" if kind == "context" else ""
                raise ValueError(f"lagwise's models have no {kind} parallelism, got a degree of {degree}{advice}")
        if config.parallelism.spmd_backend == "full_dtensor":
            raise ValueError("lagwise's models have no spmd_backend 'full_dtensor'; take 'spmd_types'")
        if not self.fields:
            self.fields = read_config(Path(config.hf_assets_path)).to_dict()
        self.seed = config.debug.seed or 0
        with torch.device("meta"):
            limit = self.build().length_limit
        if limit is not None and config.training.seq_len > limit:
            raise ValueError(f"this model takes at most {limit} tokens, got a seq_len of {config.training.seq_len}")

    def get_nparams_and_flops(self, model: Any, seq_len: int) -> tuple[int, int]:
        """Count parameters, and operations for a token: those of matrix products alone."""
        tables = {each.weight for each in model.modules() if isinstance(each, nn.Embedding)} - {model.lm_head.weight}
        count = sum(p.numel() for p in model.parameters())
        return count, _OPERATIONS * (count - sum(table.numel() for table in tables))


class Adapter(StateDictAdapter):
    """The weights of a model folder, which has tied weights once."""

    model_config: Any

    def to_hf(self, state_dict: dict[str, Any]) -> dict[str, Any]:
        return {name: value for name, value in state_dict.items() if name not in self._tied()}

    def from_hf(self, hf_state_dict: dict[str, Any]) -> dict[str, Any]:
        return hf_state_dict | {name: hf_state_dict[other] for name, other in self._tied().items()}

    def _tied(self) -> dict[str, str]:
        return TitanLM._tied_weights_keys if self.model_config.lagwise().tie_word_embeddings else {}


def parallelize(model: TitanLM, *, parallel_dims: Any, training: Any, parallelism: Any, **others: Any) -> TitanLM:
    """Apply activation checkpointing, `torch.compile` and FSDP2, each to every layer, as a ``parallelize_fn``.

    Layers, embeddings and output layer are sharded in torchtitan's precision. Kernels, and small parts outside of
    layers, stay in float32. They are one group, that of the whole model: a kernel has further methods than `forward`,
    for which FSDP would not gather its weights."""
    backbone, tables = model.model, [model.model.embed_tokens, model.lm_head]
    checkpointing, compilation = others["ac_config"], others["compile_config"]
    if checkpointing is not None:
        checkpointing.build(dump_folder=others["dump_folder"]).apply(backbone)
    if compilation.enable and "model" in compilation.components:
        for layer in backbone.layers:
            layer.compile(backend=compilation.backend)
    names = ["dp_replicate"] if parallel_dims.dp_replicate_enabled else []
    names.append("fsdp" if parallel_dims.spmd_backend == "partial_dtensor" else "dp_shard")
    options: dict[str, Any] = {"mesh": parallel_dims.get_mesh(names)}
    if training.enable_cpu_offload:
        options["offload_policy"] = CPUOffloadPolicy()
    groups: list[list[Any]] = [[layer] for layer in backbone.layers]
    groups += [tables] if tables[0].weight is tables[1].weight else [[table] for table in tables]
    if not isinstance(backbone.norm, Mixer) and [*backbone.norm.parameters()]:
        groups.append([backbone.norm])
    apart = {p for group in groups for part in group for p in part.parameters()} - _of_kernels(model)
    fully_shard(model, ignored_params=apart, reshard_after_forward=False, **options)  # first, so that it gets kernels
    own, sums = (TORCH_DTYPE_MAP[each] for each in (training.mixed_precision_param, training.mixed_precision_reduce))
    options["mp_policy"] = MixedPrecisionPolicy(param_dtype=own, reduce_dtype=sums)
    options["reshard_after_forward"] = parallelism.fsdp_reshard_after_forward != "never"
    for group in groups:
        fully_shard(group, ignored_params=_of_kernels(model), **options)
    for part in model.modules():
        if isinstance(part, FSDPModule):  # losses are already divided by the number of tokens in all processes
            part.set_gradient_divide_factor(1.0)
            part.set_force_sum_reduction_for_comms(True)  # other reductions than sums are NCCL's alone
    return model


def _of_kernels(model: nn.Module) -> set[nn.Parameter]:
    return {p for part in model.modules() if isinstance(part, LagKernel) for p in part.parameters()}
