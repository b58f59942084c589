"""Estimate the memory of a model and of a training step from the configuration, before any of it is allocated."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch.nn.modules.module import register_module_parameter_registration_hook
from transformers import GenerationMixin

from lagwise.files import one_line
from lagwise.models.configuration import LagwiseConfig
from lagwise.models.embeddings import patch_side
from lagwise.models.heads import chunks_logits
from lagwise.process import memory

_FLOAT_BYTES = 4  # of a weight, and of a value of the residual stream
_TRAINED_BYTES = 4 * _FLOAT_BYTES  # of a weight, its gradient, and AdamW's two moments
_MAX_TENSORS = 10_000  # parameter tensors of a block, each of which takes time to create


def available_memory() -> float:
    """Bytes of memory of the GPU if there is one, otherwise of the machine."""
    if torch.cuda.is_available():
        return torch.cuda.get_device_properties(torch.cuda.current_device()).total_memory
    return memory()


def parameter_count(model_class: Any, config: LagwiseConfig) -> int:
    """Number of parameters of a model, from one of its equal blocks. ValueError if it cannot be built."""
    single = copy.deepcopy(config)
    single.num_hidden_layers = 1
    with torch.device("meta"), _counted():
        try:
            model = model_class(single)
        except (RuntimeError, OverflowError, MemoryError) as error:  # products of sizes may exceed integers
            raise ValueError(f"the model cannot be built: {one_line(error)}") from error
    block = sum(p.numel() for p in model.base_model.layers[0].parameters())
    return sum(p.numel() for p in model.parameters()) + (config.num_hidden_layers - 1) * block


def check_memory(model_class: Any, config: LagwiseConfig, *, training: bool) -> None:
    """Raise ValueError if the weights (and in training their gradients and AdamW's moments) exceed the machine's
    memory."""
    parameters = parameter_count(model_class, config)
    _compare(
        parameters * (_TRAINED_BYTES if training else _FLOAT_BYTES),
        f"a model of {parameters:,} parameters takes {{}} of memory" + (" to train" if training else ""),
        "make model.hidden_size, model.vocab_size, model.ngram_buckets, model.num_hidden_layers or an option of "
        "model.block smaller",
    )


def check_step_memory(
    model_class: Any, config: LagwiseConfig, rows: int, length: int, *, checkpointing: bool, float16: bool = False
) -> None:
    """Raise ValueError if a training step certainly exceeds the machine's memory: with what every model keeps for the
    backward pass, the residual stream of ``rows`` sequences after each block, and a language model's logits where they
    are all needed. length: of a sequence, or the pixels of an image. float16: whether autocast is to it, which needs
    all logits."""
    if config.input_name == "patches":
        length //= patch_side(config) ** 2
    per_layer = 1 if checkpointing else 2  # a block's input, and the output of its norm
    all_logits = issubclass(model_class, GenerationMixin) and (float16 or not chunks_logits(config))
    logits = 2 * config.vocab_size if all_logits else 0
    values = per_layer * config.num_hidden_layers * config.hidden_size + logits
    _compare(
        rows * length * values * _FLOAT_BYTES,
        f"a step of {rows} sequences of {length} tokens takes more than {{}} of memory",
        "make training.batch_size or data.length smaller, or training.accumulate larger",
    )


def check_images_memory(images: int, channels: int, height: int, width: int) -> None:
    """Raise ValueError if a first answer of images certainly exceeds the machine's memory: it holds all of them in
    float32, and computes their features in small parts."""
    _compare(
        images * channels * height * width * _FLOAT_BYTES,
        f"a first answer of {images} images of {height} x {width} pixels takes more than {{}} of memory",
        "make the images smaller, use fewer of them, or train without a first answer",
        memory(),
    )


def _compare(needed: int, message: str, advice: str, available: float | None = None) -> None:
    available = available_memory() if available is None else available
    if needed > available:
        size = f"{needed / 1e9:,.1f} GB"
        raise ValueError(f"{message.format(size)}, of which there is {available / 1e9:,.1f} GB; {advice}")


@contextmanager
def _counted() -> Iterator[None]:
    """Raise a ValueError early for a block with too many parameter tensors to build."""
    count = 0

    def count_one(*_: Any) -> None:
        nonlocal count
        count += 1
        if count > _MAX_TENSORS:
            raise ValueError(f"a block has over {_MAX_TENSORS} parameter tensors; make its numbers of layers smaller")

    handle = register_module_parameter_registration_hook(count_one)
    try:
        yield
    finally:
        handle.remove()
