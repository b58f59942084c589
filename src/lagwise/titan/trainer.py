"""torchtitan's Trainer with the data, the optimizer and the schedule of `lagwise.training`."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor
from torchtitan.components.dataloader import BaseDataLoader
from torchtitan.components.loss import IGNORE_INDEX
from torchtitan.components.optimizer import LRSchedulersContainer, OptimizersContainer, ParamGroupConfig
from torchtitan.components.tokenizer import BaseTokenizer
from torchtitan.trainer import Trainer
from transformers import get_scheduler

from lagwise.data import prepare
from lagwise.titan.export import MODEL
from lagwise.training.optimizer import parameter_groups

if not hasattr(dist, "set_timeout"):  # torchtitan 0.3 calls it after the first step; PyTorch 2.13 does not have it
    dist.set_timeout = dist.distributed_c10d._set_pg_timeout  # type: ignore[attr-defined]


class TitanTrainer(Trainer):
    """Trainer that keeps the configuration and the tokenizer beside its checkpoints, for `export`. ValueError if the
    model has fewer tokens than the tokenizer."""

    @dataclass(kw_only=True, slots=True)
    class Config(Trainer.Config):
        pass

    def __init__(self, config: Config):
        super().__init__(config)
        own, tokenizer = self.model_config.lagwise(), getattr(self.dataloader, "tokenizer", None)  # type: ignore
        if tokenizer is not None and len(tokenizer) > own.vocab_size:
            raise ValueError(f"the model's vocab_size {own.vocab_size} is less than the tokenizer's {len(tokenizer)}")
        for each in (own, tokenizer) if dist.get_rank() == 0 else ():
            if each is not None:
                each.save_pretrained(Path(config.dump_folder, MODEL))


@dataclass(kw_only=True, slots=True)
class FolderTokenizer(BaseTokenizer.Config):
    """The folder ``hf_assets_path``, if it has a tokenizer, for `TokenLoader`."""

    def build(self, *, tokenizer_path: str = "", **kwargs: Any) -> Any:
        return tokenizer_path if Path(tokenizer_path, "tokenizer_config.json").is_file() else None


class TokenLoader(BaseDataLoader):
    """Windows of a text's tokens: those that the same step of `lagwise.training.train` takes. The state counts windows,
    so any number of processes may continue it.

    Options: ``dataset``, a text as in `lagwise.data.open_source`; ``tokenizer_name`` and ``vocab_size`` as in
    `lagwise.data.load_tokenizer`, if `FolderTokenizer` finds none; ``seed`` of the order.
    """

    @dataclass(kw_only=True, slots=True)
    class Config(BaseDataLoader.Config):
        dataset: str = "stdlib"
        tokenizer_name: str = "bytes"
        vocab_size: int = 8192
        seed: int = 0

    def __init__(self, config: Config, *, tokenizer: str | None, seq_len: int, local_batch_size: int, **ranks: Any):
        self.rows, self.processes, self.rank = local_batch_size, ranks["dp_world_size"], ranks["dp_rank"]
        name = tokenizer or config.tokenizer_name
        text = prepare(config.dataset, name, vocab_size=config.vocab_size, progress=self.rank == 0)
        self.tokenizer = text.tokenizer
        self.windows = text.training_examples(seq_len, 2**62, config.seed)  # without end
        self.seen = 0  # windows, of all processes

    def __iter__(self) -> Iterator[tuple[dict[str, Tensor], Tensor]]:
        while True:
            start = self.seen + self.rank * self.rows
            ids = torch.stack([self.windows[i]["input_ids"] for i in range(start, start + self.rows)])
            self.seen += self.processes * self.rows
            yield {"input": ids}, F.pad(ids[:, 1:], (0, 1), value=IGNORE_INDEX)

    def state_dict(self) -> dict[str, Any]:
        return {"seen": self.seen}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self.seen = state_dict["seen"]


class AdamW(OptimizersContainer):
    """AdamW that decays matrices alone, by the groups of `lagwise.training.optimizer.parameter_groups`."""

    @dataclass(kw_only=True, slots=True)
    class Config(OptimizersContainer.Config):
        learning_rate: float = 4e-3
        beta1: float = 0.9
        beta2: float = 0.98
        epsilon: float = 1e-8
        weight_decay: float = 0.1

    def __init__(self, config: Config, *, model_parts: list[Any]):
        names = {id(p): re.escape(name) for name, p in model_parts[0].named_parameters()}
        options = {"lr": config.learning_rate, "betas": (config.beta1, config.beta2), "eps": config.epsilon}
        groups = [
            ParamGroupConfig(
                pattern=f"^({'|'.join(names[id(p)] for p in group['params'])})$",
                optimizer_name="AdamW",
                optimizer_kwargs={**options, "weight_decay": group["weight_decay"]},
            )
            for group in parameter_groups(model_parts[0], config.weight_decay)
        ]
        super().__init__(replace(config, param_groups=groups), model_parts=model_parts)


@dataclass(kw_only=True, slots=True)
class Schedule(LRSchedulersContainer.Config):
    """A schedule of transformers by its name, as the option ``schedule`` of `lagwise.training`."""

    schedule: str = "cosine"

    def build(self, *, optimizers: Any, training_steps: int) -> LRSchedulersContainer:
        alone = torch.optim.SGD([torch.zeros(1)], lr=optimizers.optimizers[0].param_groups[0]["lr"])
        scheduler = get_scheduler(self.schedule, alone, int(self.warmup_steps), self.total_steps or training_steps)
        return LRSchedulersContainer(optimizers, scheduler.lr_lambdas[0])
