"""Speed of training and inference on inputs with the shapes of Long Range Arena's tasks, for models of one size."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from lagwise.models import LagwiseConfig, LagwiseForImageClassification, LagwiseForSequenceClassification
from lagwise.models.presets import GRID_PRESETS, PRESETS
from lagwise.progress import progress_bar
from lagwise.tables import known
from lagwise_papers.bench.harness import memory_of
from lagwise_papers.bench.timing import Timing, interleaved

BASE = "transformer"  # the baseline of all ratios
_LAYERS, _WIDTH = 2, 64  # the same for every model, as in TNN table 4
_HEADS, _EXPANSION = 2, 2
_CHECKED, _TOLERANCE = 256, 1e-3


@dataclass(frozen=True)
class Shape:
    """Input shape of a task.

    Args:
        length: Tokens or pixels per row.
        classes: Number of classes.
        vocabulary: Number of token ids; 0 for images.
        texts: Texts per row.
        batch: Rows per step, as in Skyformer's comparison; Path-X is not in it.
    """

    length: int
    classes: int
    vocabulary: int
    texts: int = 1
    batch: int = 32


SHAPES = {
    "listops": Shape(2000, 10, 18),
    "text": Shape(4096, 2, 258),
    "retrieval": Shape(8000, 2, 258, texts=2, batch=16),
    "image": Shape(1024, 10, 0, batch=128),
    "pathfinder": Shape(1024, 2, 0, batch=128),
    "path-x": Shape(16384, 2, 0, batch=2),
}


@dataclass(frozen=True)
class Speed:
    """Result of a model: seconds of a forward pass and of a training step (with AdamW's update) of ``batch`` rows, and
    the peak memory of a step in bytes (0 if it was not measured)."""

    task: str
    model: str
    batch: int
    parameters: int
    forward: Timing
    step: Timing
    memory: int


def network(task: str, word: str, *, two_dimensions: bool = False) -> Any:
    """Build a model with two layers of 64 channels for a task.

    Args:
        task: A key of `SHAPES`.
        word: A key of `PRESETS`.
        two_dimensions: Whether to use the preset's two-dimensional form.

    Raises:
        ValueError: If a name is unknown, or if ``two_dimensions`` is set for a task without images or a preset without
            a two-dimensional form.
    """
    shape = SHAPES[known(task, SHAPES, "task")]
    known(word, PRESETS, "model")
    fields: dict[str, Any] = {"hidden_size": _WIDTH, "num_hidden_layers": _LAYERS, "causal": False}
    fields |= {"num_labels": shape.classes, "position_embedding": "sinusoidal"}
    if two_dimensions and (shape.vocabulary or word not in GRID_PRESETS):
        raise ValueError(f"{word!r} has no two-dimensional form for the task {task!r}")
    preset = (GRID_PRESETS if two_dimensions else PRESETS)[word]
    fields |= preset
    if word == BASE:
        attention = {"name": "attention", "heads": _HEADS, "position": "none"}
        mlp = {"name": "mlp", "expansion": _EXPANSION}
        fields["block"] = {**preset["block"], "token_mixer": attention, "channel_mixer": mlp}
    if not shape.vocabulary:
        return LagwiseForImageClassification(
            LagwiseConfig(**fields, inputs={"name": "patches", "channels": 1, "size": 1})
        )
    if shape.texts == 2:
        fields |= {"pooling": "signed_pair", "classifier_hidden_size": _WIDTH}
    return LagwiseForSequenceClassification(LagwiseConfig(**fields, vocab_size=shape.vocabulary))


def batch_of(task: str, rows: int, length: int | None = None) -> dict[str, Tensor]:
    """Draw random inputs for a task; images are square."""
    shape = SHAPES[task]
    length = length or shape.length
    if not shape.vocabulary:
        side = round(length**0.5)
        return {"pixel_values": torch.randn(rows, 1, side, side)}
    ids = torch.randint(min(shape.vocabulary, 256), (rows, length))
    if shape.texts == 1:
        return {"input_ids": ids}
    return {"input_ids": ids, "token_type_ids": (torch.arange(length) >= length // 2).long().expand(rows, -1)}


def check(model: Any, task: str) -> None:
    """Compare a model's logits for short rows with its logits in float64; RuntimeError if they differ."""
    inputs = batch_of(task, 2, _CHECKED)
    model.eval()
    with torch.no_grad():
        ours = model(**inputs).logits.double()
        model.double()
        exact = model(**{k: v.double() if v.is_floating_point() else v for k, v in inputs.items()}).logits
        model.float()
    error = float((ours - exact).abs().max() / exact.abs().max().clamp(min=1e-9))
    if not error <= _TOLERANCE:
        raise RuntimeError(f"logits are off by {error:.1e} of the largest; wrong results are not timed")


def time_models(
    tasks: Sequence[str],
    words: Sequence[str],
    *,
    rows: int | None = None,
    repeats: int = 5,
    threads: int = 2,
    memory: bool = True,
    report: Callable[[Speed], None] = lambda speed: None,
    progress: bool = False,
) -> list[Speed]:
    """Time each model on each task. The models of one task are timed in turn.

    Args:
        tasks: Keys of `SHAPES`.
        words: Keys of `PRESETS`. The suffix ``-2d`` selects the two-dimensional form, which is skipped for tasks
            without images.
        rows: Batch size; by default that of the task.
        repeats: Timed repeats.
        threads: CPU threads.
        memory: Whether to measure peak memory too.
        report: Called with each result.
        progress: Whether to show a progress bar.

    Raises:
        ValueError: If a name is unknown or a model has no two-dimensional form, before anything is timed.
    """
    torch.set_num_threads(threads)
    suitable_words: dict[str, list[str]] = {}
    for task in tasks:
        images = not SHAPES[known(task, SHAPES, "task")].vocabulary
        suitable_words[task] = [word for word in words if images or not word.endswith("-2d")]
        with torch.device("meta"):
            for word in suitable_words[task]:
                _network(task, word)
    results: list[Speed] = []
    turns = 1 + 2 * (1 + repeats) + memory  # a check, forward passes, steps, and the memory, of each model
    total = turns * sum(map(len, suitable_words.values()))
    with progress_bar(desc="measuring", total=total, unit="turn", show=progress) as bar:

        def counted(method: Callable[[], None]) -> Callable[[], None]:
            def run() -> None:
                method()
                bar.update()

            return run

        for task, suitable in suitable_words.items():
            bar.set_postfix({"task": task}, refresh=False)
            batch = rows or SHAPES[task].batch
            inputs, models = batch_of(task, batch), {}
            for word in suitable:
                torch.manual_seed(0)
                models[word] = _network(task, word)
                check(models[word], task)
                bar.update()
            forward, step = (
                interleaved({w: counted(make_turn(m, inputs)) for w, m in models.items()}, repeats=repeats, warmup=1)
                for make_turn in (_forward, _step)
            )
            for word, model in models.items():
                used = 0
                if memory:
                    used = memory_of(_steps, task, word, batch, threads=threads)
                    bar.update()
                size = sum(p.numel() for p in model.parameters())
                results.append(Speed(task, word, batch, size, forward[word], step[word], used))
                report(results[-1])
    return results


def table_rows(speeds: Sequence[Speed]) -> list[tuple[str, ...]]:
    """Format one row per task and model, with speed and memory relative to the Transformer."""
    bases = {speed.task: speed for speed in speeds if speed.model == BASE}
    lines: list[tuple[str, ...]] = []
    for s in speeds:
        base = bases.get(s.task, s)
        lines.append(
            (
                *(s.task, s.model, f"{s.parameters:,}", str(s.batch)),
                *(f"{1 / s.forward.median:.2f}", f"{base.forward.median / s.forward.median:.2f}x"),
                *(f"{1 / s.step.median:.2f}", f"{base.step.median / s.step.median:.2f}x"),
                f"{s.memory / 2**20:,.0f} MB" if s.memory else "-",
                f"{s.memory / base.memory:.2f}x" if base.memory else "-",
            )
        )
    return lines


def _network(task: str, word: str) -> Any:
    return network(task, word.removesuffix("-2d"), two_dimensions=word.endswith("-2d"))


def _forward(model: Any, inputs: dict[str, Tensor]) -> Callable[[], None]:
    def run() -> None:
        with torch.inference_mode():
            model.eval()(**inputs)

    return run


def _step(model: Any, inputs: dict[str, Tensor]) -> Callable[[], None]:
    first = next(iter(inputs.values()))
    labels = torch.arange(len(first)) % model.config.num_labels
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)

    def run() -> None:
        model.train()
        optimizer.zero_grad()
        F.cross_entropy(model(**inputs).logits, labels).backward()
        optimizer.step()

    return run


def _steps(task: str, word: str, batch: int) -> Iterator[Callable[[], None]]:
    """Yield training steps for `memory_of`."""
    model = _network(task, word)
    yield _step(model, batch_of(task, 1, 64))
    yield _step(model, batch_of(task, batch))
