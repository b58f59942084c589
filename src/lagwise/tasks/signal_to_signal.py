"""Numbers for every sample of a signal: another signal."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import torch
from pydantic import Field
from torch import Tensor

from lagwise.data.arrays import SERIES, series
from lagwise.data.batches import IGNORED
from lagwise.data.encoding import RowEncoder, typical_time
from lagwise.data.options import DataOptions
from lagwise.data.series import SeriesSource
from lagwise.data.signals import (
    Damage,
    SignalPairs,
    Whole,
    WholeSignals,
    check_loud,
    checked_signal,
    delayed,
    open_inputs,
    open_signals,
    prepare_signals,
)
from lagwise.data.splits import SPLITS, key_of
from lagwise.evaluation.signals import si_sdr, signal_scores
from lagwise.models import LagwiseForSignalRegression
from lagwise.models.loading import read_config
from lagwise.models.signal_stream import whole_output
from lagwise.tables import Count, Number, Share, counted, known, refuse
from lagwise.tables import Whole as WholeNumber
from lagwise.tasks.base import Metric, Recordings, SeriesTask, Table, finite
from lagwise.tasks.figures import Figures, Log, signals_beside

LOSSES = {
    "mse": Metric("mse", "mean squared error", greater_is_better=False),
    "l1": Metric("mae", "mean absolute error", greater_is_better=False),
    "sdr": Metric("si_sdr", "SI-SDR (dB)"),
    "si_sdr": Metric("si_sdr", "SI-SDR (dB)"),
}
_SHOWN_SAMPLES = 1000  # samples of a test signal in the report


class SignalToSignal(SeriesTask):
    """A number or vector for every sample of a signal: the signal without noise, with its gaps filled, some samples
    later, or what another sensor would have measured.

    Data: pairs of sounds by the names of their files, columns of tables, or lists in records (`open_signals`). With
    ``noise``, ``hide`` or ``ahead`` the data are the targets alone, and the inputs are made of them: in training newly
    in every window, of held-out signals always the same. Training uses random windows of ``data.length`` samples,
    evaluation whole signals.

    Options:
        features: columns of the inputs, in this order; found in the data.
        targets: columns of the targets (``target``).
        stride: samples per step of the model.
        delay: a causal model gives the output for a sample when it has seen so many more; 0 for a two-sided one.
        window: samples of the model's filters (`lagwise.models.signal_regression.SignalOutputs`); 0 for none.
        loss: ``mse``, ``l1``, or the ratio of signal to distortion in dB of each window: ``sdr``, or ``si_sdr``, which
            ignores the scale, so that outputs may have any (`lagwise.evaluation.signals.si_sdr`).
        noise: sounds or tables of noise, which is added to the data; it is split as the data are.
        ratios: of the signal's power to the noise's, in dB; each window draws one.
        hide: share of the samples of each input that is hidden, to learn to fill gaps.
        hide_length: samples that are hidden together.
        ahead: samples ahead that a causal model predicts, at least ``stride``: the output of a sample is the estimate
            of the sample so many later, without a delay, window, noise or hidden samples.
        rate: sampling rate of sound files in Hz; found in the data.
        time: column of the times of samples, as in `SequenceClassification`; needs a stride of 1, and no delay, window,
            noise or hidden samples.

    Metrics: mean squared error, mean absolute error, SI-SDR in dB, each a mean over signals; the headline is that of
    the loss. Where there are as many outputs as inputs, also those of the inputs as they are, and the gain in SI-SDR.
    """

    _needs = "signal_to_signal needs signals to learn from; give a file or folder as `source`"
    head = LagwiseForSignalRegression
    _unit = "signal"

    def __init__(
        self,
        data: DataOptions,
        *,
        features: list[str] | None = None,
        targets: list[str] | None = None,
        stride: Count = 1,
        delay: Annotated[WholeNumber, Field(ge=0)] = 0,
        window: Annotated[WholeNumber, Field(ge=0)] = 0,
        loss: str = "mse",
        noise: str | None = None,
        ratios: list[Number] | None = None,
        hide: Share = 0.0,
        hide_length: Count = 1,
        ahead: Annotated[WholeNumber, Field(ge=0)] = 0,
        rate: Count | None = None,
        time: str | None = None,
    ):
        super().__init__(data)
        self.makes_inputs = noise is not None or hide > 0 or ahead > 0  # from the targets
        refuse(
            (
                (noise is None) != (ratios is None),
                f"`noise` and `ratios` belong together, got {noise!r} and {ratios!r}: ratios are those of the "
                "signal's power to the noise's, in dB, such as [0, 5, 10]",
            ),
            (ratios == [], "`ratios` must have at least one ratio in dB, got []"),
            (
                self.makes_inputs and targets is not None,
                f"`targets` {targets!r} are for data with targets; with `noise`, `hide` or `ahead` the inputs are made "
                "of the columns `features`",
            ),
            (
                data.length < stride + delay,
                f"`length` {data.length} is less than `stride` and `delay`, {stride} + {delay}",
            ),
            (
                window and window < stride + delay,
                f"`window` must be 0 or at least `stride` + `delay` = {stride + delay}, got {window}",
            ),
            (
                ahead > 0 and (ahead < stride or delay or window or noise is not None or hide > 0),
                f"`ahead` must be at least `stride` = {stride}, and needs `delay=0`, `window=0`, and no `noise` or "
                f"`hide`, got {ahead}, {delay}, {window}, {noise!r} and {hide:g}",
            ),
            (
                time is not None and (stride != 1 or delay or window or self.makes_inputs),
                "`time`, of samples with times of their own, needs `stride=1`, `delay=0`, `window=0`, and "
                f"no `noise`, `hide` or `ahead`, got {stride}, {delay}, {window}, {noise!r} and {hide:g}",
            ),
        )
        self.headline = LOSSES[known(loss, LOSSES, "`loss`")]
        self.features, self.targets, self.rate, self.time = features, targets, rate, time
        self.stride, self.delay, self.window, self.loss, self.ahead = stride, delay, window, loss, ahead
        self.noise, self.ratios, self.hide, self.hide_length = noise, ratios or [], hide, hide_length

    @cached_property
    def source(self) -> SeriesSource:
        """The signals, not yet read."""
        return open_signals(str(self.data.source), **self._reading, alone=self.makes_inputs)

    @cached_property
    def noises(self) -> SeriesSource | None:
        """The noise, not yet read, of the sampling rate of the signals."""
        if self.noise is None:
            return None
        return open_signals(self.noise, features=None, alone=True, rate=self.source.reading_options().get("rate"))

    @property
    def _reading(self) -> dict[str, Any]:
        return {"features": self.features, "targets": self.targets, "rate": self.rate, "time": self.time}

    def fields(self) -> dict[str, Any]:
        return {**super().fields(), "outputs": {"delay": self.delay, "window": self.window}}

    def check_config(self, config: Any) -> None:
        super().check_config(config)
        if self.delay and not config.causal:
            raise ValueError(f"a two-sided model (`causal=false`) needs no `delay`, got {self.delay}; set it to 0")
        if self.ahead and not config.causal:
            raise ValueError(f"a two-sided model has seen the {self.ahead} samples `ahead`; give `causal=true`")

    def key(self) -> str:
        return key_of([self.source.key(), None if self.noises is None else self.noises.key()])

    def _open(self, run: Path | None, progress: bool) -> SignalData:
        pairs = prepare_signals(self.source, progress=progress)
        noises = None if self.noises is None else prepare_signals(self.noises, progress=progress)
        if noises is not None and noises.inputs not in (1, pairs.inputs):
            raise ValueError(
                f"the noise in {self.noise!r} has {noises.inputs} channels, but the signals have {pairs.inputs}; use "
                "noise of one channel, which is added to all, or of as many"
            )
        if noises is not None:
            check_loud(noises, str(self.noise))
        damage = Damage(noises, self.ratios, self.hide, self.hide_length)
        options = (damage, self.delay, self.ahead, self.data.length)
        return SignalData(self, pairs, {split: WholeSignals(pairs, split, *options) for split in SPLITS})

    def _open_other(self, source: str, run: Path, progress: bool) -> SignalData:
        """The signals of other data must have targets."""
        config: Any = read_config(run)
        expected = config.inputs["features"], config.outputs["features"]
        opened = open_signals(source, **self._reading, any_rate=self.rate is not None)
        split = "test" if "test" in opened.split_names else opened.split_names[0]
        whole, hertz = [], []
        for signal in opened.signals(split):
            checked_signal(signal, expected, "the model has")
            whole.append(Whole(signal.inputs, delayed(signal.targets, -self.ahead), None))
            hertz.append(signal.rate)
        signals = SignalData(self, scored={"test": whole})
        signals._hertz = hertz if self.rate is not None else None
        return signals

    def rows(self, source: str) -> Any:
        return open_inputs(source, features=self.features, time=self.time)

    def columns(self) -> tuple[str, ...]:
        return (SERIES,)

    def _encoded(self, model: Any, tokenizer: Any, rows: Any) -> list[Whole]:
        """Read each row's ``input_values``, which may have NaN."""
        encode = RowEncoder((SERIES,), 1 << 30, features=model.config.inputs["features"], gaps=True)
        return [Whole(x, x[:, :0], None) for x in series(encode.table(rows))]

    def _output(self, model: Any, tokenizer: Any, row: Whole) -> np.ndarray:
        """The outputs ``(samples, outputs)`` of a whole signal."""
        y = whole_output(model, torch.tensor(row.inputs).to(model.device))
        return finite(y.float().cpu().numpy(), "outputs")

    def _answer(self, model: Any, output: np.ndarray) -> dict[str, Any]:
        return {"predicted": output}

    def table(self, rows: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
        """A line for each sample: the file or row if there are several, the inputs, and the outputs."""
        lines, named = [], self.features if self.makes_inputs else self.targets
        outputs = None if named is None else [f"predicted_{name}" for name in named]
        for number, row in enumerate(rows, 1):
            x, y = (np.asarray(row[name], dtype=np.float32) for name in (SERIES, "predicted"))
            x = self.values(x)
            names = _names(self.features, x.shape[1], "input") + _names(outputs, y.shape[1], "predicted")
            source = {"file": row.get("file", number)} if len(rows) > 1 else {}
            for values in np.concatenate([x, y], axis=1).tolist():
                cells = ["" if math.isnan(value) else f"{value:.7g}" for value in values]
                lines.append({**source, **dict(zip(names, cells, strict=True))})
        return lines

    def values(self, x: np.ndarray) -> np.ndarray:
        """Return the inputs without their times."""
        return x if self.time is None else x[:, 1:]

    def tables(self, evaluation: Mapping[str, Any]) -> list[Table]:
        def row(name: str, s: Mapping[str, Any]) -> tuple[str, ...]:
            gain = ("-",) if s.get("si_sdr_gain") is None else (f"{s['si_sdr_gain']:+.2f}",)
            return (
                name,
                f"{s['mse']:.4g}",
                f"{s['mae']:.4g}",
                "-" if s["si_sdr"] is None else f"{s['si_sdr']:.2f}",
                *gain,
            )

        rows = []
        for split in ("valid", "test"):
            if split in evaluation:
                scores = evaluation[split]
                rows.append(row(f"{split}, {counted(scores['rows'], 'signal')}", scores))
                rows += [row(f"{split}, noise at {ratio} dB", s) for ratio, s in scores.get("by_ratio", {}).items()]
                rows += [row(f"{split}, the input as it is", scores["input"])] if "input" in scores else []
                rows += [row(f"{split}, missing samples", scores["missing"])] if "missing" in scores else []
        head = ("", "squared error", "absolute error", "SI-SDR (dB)", "gain")
        return [Table(f"Signals, each given {evaluation['delay']} samples after it at most", head, rows)]

    def figures(self, metrics: Log, evaluation: Mapping[str, Any] | None) -> Figures:
        figures = super().figures(metrics, evaluation)
        if evaluation is not None and "example" in evaluation:
            figures["example"] = lambda: signals_beside(evaluation["example"])
        return figures


def _names(names: Sequence[str] | None, count: int, word: str) -> list[str]:
    """Return the names of columns: those that are given, or a word, with numbers if there are several."""
    if names is not None and len(names) == count:
        return list(names)
    return [word] if count == 1 else [f"{word}_{i + 1}" for i in range(count)]


class SignalData(Recordings):
    """The signals of a task and their targets. pairs: None for other data. scored: signals to evaluate, by split."""

    task: SignalToSignal

    def __init__(self, task: SignalToSignal, pairs: SignalPairs | None = None, scored: dict[str, Any] | None = None):
        super().__init__(task)
        self.pairs: Any = pairs
        self.signals: Any = scored or {}
        self._scored = {split: signals for split, signals in self.signals.items() if split != "train"}

    def fields(self) -> dict[str, Any]:
        kinds = zip(
            ("inputs", "outputs"), (self.pairs.inputs, self.pairs.outputs), self.pairs.mean, self.pairs.std, strict=True
        )
        stats = {name: {"features": count, "mean": mean, "std": std} for name, count, mean, std in kinds}
        if self.task.time is not None:
            stats["inputs"]["time"] = typical_time(series(self.pairs.splits["train"], "signal"))
        fixed = self.task.fields()
        return {name: {**fixed[name], **own} for name, own in stats.items()}

    def notes(self) -> Sequence[str]:
        lines, rate = [], self.resolved().get("rate")
        for split, rows in self.pairs.splits.items():
            samples = sum(rows["length"][:])
            long = f" ({samples / rate:,.1f} seconds)" if rate else ""
            shape = f"{self.pairs.inputs} in, {self.pairs.outputs} out"
            lines.append(f"{split}: {counted(len(rows), 'signal')} of {samples:,} samples{long}, {shape}")
        return [*lines, *self.pairs.notes]

    def _windows(self, split: str) -> Any:
        return self.signals[split]

    def loss(self, outputs: Any, labels: Tensor, num_items_in_batch: Any = None) -> Tensor:
        """The squared or absolute error over the outputs' deviations, or the negative ratio of each window: a mean over
        the samples that have a target."""
        y = outputs.regression_outputs
        real = labels != IGNORED
        if self.task.loss in ("sdr", "si_sdr"):
            channels = (each.transpose(1, 2) for each in (y, labels, real))
            ratios = si_sdr(*channels, any_scale=self.task.loss == "si_sdr")
            total = -(ratios.nan_to_num(0.0) * real.sum(1)).sum()
        else:
            errors = ((y - labels) / y.new_tensor(self.pairs.std[1])).masked_fill(~real, 0)
            total = errors.square().sum() if self.task.loss == "mse" else errors.abs().sum()
        counted = real.sum() if num_items_in_batch is None else num_items_in_batch
        return total / torch.as_tensor(counted, device=total.device).clamp(min=1)

    def reduce(self, logits: Any, labels: Tensor) -> tuple[Tensor, Tensor]:
        """Return for each window: squared and absolute errors, their number, the SI-SDR and its weight."""
        y = (logits[0] if isinstance(logits, tuple) else logits).float()
        real = labels != IGNORED
        errors = (y - labels).masked_fill(~real, 0)
        ratios = si_sdr(y.transpose(1, 2), labels.transpose(1, 2), real.transpose(1, 2))
        sums = [errors.square().sum((1, 2)), errors.abs().sum((1, 2)), real.sum((1, 2))]
        sums += [ratios.nan_to_num(0.0).sum(1), (~ratios.isnan()).sum(1)]
        stacked = torch.stack([each.to(y.dtype) for each in sums], dim=1)
        return stacked, stacked[:, 0]

    def metrics(self, loss: float, predictions: Any = None, labels: Any = None) -> dict[str, float]:
        square, absolute, count, ratio, ratios = np.asarray(predictions, dtype=np.float64).sum(0)
        return {"mse": square / max(1, count), "mae": absolute / max(1, count), "si_sdr": ratio / max(1, ratios)}

    def evaluate(self, model: Any, **options: Any) -> dict[str, Any]:
        """Return the scores of the valid and test signals, by the ratio of noise too, with those of the inputs as they
        are (``input``) and of missing samples (``missing``). ``example``: a part of the first test signal."""
        delay = self.task.delay + self.task.stride - 1
        return {"kind": "signals", "delay": delay, **super().evaluate(model, **options)}

    def _measured(self, output: np.ndarray, rows: Any, i: int) -> dict[str, Any]:
        whole, input_scores, missing = rows[i], None, None
        scores, inputs = signal_scores(output, whole.targets), self.task.values(whole.inputs)
        if inputs.shape == whole.targets.shape:
            gaps = np.isnan(inputs)
            input_scores = signal_scores(np.where(gaps, 0, inputs), whole.targets)
            scores = {**scores, "si_sdr_gain": scores["si_sdr"] - input_scores["si_sdr"]}
            if gaps.any():
                missing = signal_scores(output, np.where(gaps, whole.targets, np.nan))
        example = _example(inputs, whole.targets, output) if i == 0 else None
        return {"scores": scores, "input": input_scores, "missing": missing, "ratio": whole.ratio, "example": example}

    def _scores(self, split: str, measured: Sequence[dict[str, Any]], model: Any) -> dict[str, Any]:
        result = {**_means([each["scores"] for each in measured]), "rows": len(measured)}
        for name in ("input", "missing"):
            if present := [each[name] for each in measured if each[name] is not None]:
                result[name] = _means(present)
        ratios = sorted({each["ratio"] for each in measured} - {None})
        if len(ratios) > 1:
            by = {f"{r:g}": [each["scores"] for each in measured if each["ratio"] == r] for r in ratios}
            result["by_ratio"] = {ratio: _means(scores) for ratio, scores in by.items()}
        return {split: result, **({"example": measured[0]["example"]} if split == "test" else {})}


def _means(scores: Sequence[Mapping[str, float]]) -> dict[str, Any]:
    """The mean of each score over the signals that have it; None where none has, as JSON has no NaN."""
    means: dict[str, float | None] = {}
    for name in scores[0]:
        values = [each[name] for each in scores if math.isfinite(each[name])]
        means[name] = float(np.mean(values)) if values else None
    return means


def _example(inputs: np.ndarray, targets: np.ndarray, outputs: np.ndarray) -> dict[str, list[float | None]]:
    """The first feature and output in the middle of a signal."""
    start = max(0, len(outputs) // 2 - _SHOWN_SAMPLES // 2)
    part = {"input": inputs[:, 0], "target": targets[:, 0], "output": outputs[:, 0]}
    return {
        name: [None if np.isnan(v) else round(float(v), 6) for v in x[start : start + _SHOWN_SAMPLES]]
        for name, x in part.items()
    }
