"""Training on text that is read and encoded while the model trains."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from transformers import TrainingArguments

from lagwise.data.options import MADE_OF_TEXT, DataOptions
from lagwise.data.streams import StreamLoader
from lagwise.training.recipe import Recipe, TrainingOptions

_FILE = "stream_{}.json"  # of a process, by its rank


class SavedStream:
    """The batches of a process, whose position in the stream is saved in a file of every checkpoint."""

    def __init__(self, loader: StreamLoader, process: int):
        self.loader, self.file = loader, _FILE.format(process)

    def save(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        (folder / self.file).write_text(json.dumps(self.loader.state_dict()) + "\n", encoding="utf-8")

    def load(self, folder: Path) -> None:
        """Continue from a checkpoint. ValueError if it was written by another number of processes."""
        if not (folder / self.file).is_file():
            raise ValueError(f"{self.file} is missing: a stream is resumed by as many processes as have begun it")
        self.loader.load_state_dict(json.loads((folder / self.file).read_text(encoding="utf-8")))


def check_streaming(data: DataOptions, training: TrainingOptions) -> None:
    """ValueError for options that need the whole text before training."""
    if not data.streaming:
        return
    if training.epochs is not None:
        raise ValueError("the length of the text is not known with `streaming`; give `steps` instead of `epochs`")
    if data.lengths is not None:
        raise ValueError("`lengths` does not go with `streaming`; give `length` alone")
    if data.tokenizer in MADE_OF_TEXT:
        raise ValueError(
            f"tokenizer {data.tokenizer!r} is made of the whole text, which `streaming` does not read first; train "
            "a few steps on a part of the text with it, and give the run's folder as `tokenizer`"
        )


def streamed_text(recipe: Recipe, data: Any, arguments: TrainingArguments) -> SavedStream | None:
    """Open the batches of this process; None if text is not streamed. Processes that share sequences read the same."""
    if not recipe.data.streaming:
        return None
    options, count = recipe.training, recipe.training.sequence_parallel
    reader, readers = arguments.process_index // count, arguments.world_size // count
    stream = data.training_stream(arguments.per_device_train_batch_size, options.seed, reader, readers)
    return SavedStream(StreamLoader(stream, options.workers), arguments.process_index)
