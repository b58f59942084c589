"""Classes of heartbeats from their rhythm and shape: a second stage over beats whose positions are known or detected.

    python benchmarks/ecg_beats.py choose rows/                       # on DS1 alone, cross-validated by record
    python benchmarks/ecg_beats.py score rows/ runs/causal --out benchmarks/results/ecg-beats-cpu.json

rows/ is that of `benchmarks/ecg.py prepare`, and the run, a first stage that detects beats, that of its `train`. The
second stage has two parts. Boosted trees find the ventricular beats, by the intervals around each beat and its shape in
both leads beside the shapes of the beats before. Of the others a logistic regression finds the premature ones, by the
rhythm alone: intervals as ratios to means and high quantiles of minutes, which premature beats hardly move, even where
most beats are premature. It answers when the next two beats have been detected. All choices were made on DS1; `score`
fits to all of DS1 and scores DS2: at annotated beats, and at those that the first stage detects.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from scipy.ndimage import median_filter

from ecg import DS1, DS2, RATE
from lagwise.evaluation.events import event_scores, latest_report, paired_classes
from lagwise.runs import predict_run
from lagwise.training import load_recipe, make_task
from lagwise_papers.bench.timing import save_results

NAMES = ("none", "N", "S", "V", "F", "Q")
LEARNED = ("N", "S", "V")  # the others are too rare in DS1
TREES = {"other": 1.0, "V": 0.2}  # shares of classes in the loss; records within a class have the root of their beats
RHYTHM = {"N": 1.0, "S": 0.5}
THRESHOLDS = (0.3, 0.5, 0.7, 0.85)  # probabilities of S above which a beat is S
THRESHOLD = 0.7  # the best by `choose`
AIMS = (0.6, 0.4)  # sensitivity and positive predictivity of S
TOLERANCE = round(0.15 * RATE)  # samples between an event and its match, at most
BEFORE, AFTER, EVERY = 144, 180, 4  # samples of a beat's shape around it, and between those that are kept
REACH = 30  # samples that a position may move to the middle of its QRS complex
MEMORY = 48  # beats of a running median
LONG = 240  # beats of a longer one
LONG_FEATURES = 12  # of `long_rhythm`
SHAPES = 64  # beats whose shapes are compared
MINUTES = 300  # beats before, with the next one, whose intervals have a mean and quantiles
NEAR = 10  # beats before, for those of the last seconds
LARGEST = 2.0  # logarithm of a ratio, at most
LATER = 2  # beats after one that its answer waits for


def refined(samples: np.ndarray, positions: np.ndarray, reach: int) -> np.ndarray:
    """Move positions to the largest energy of the slope nearby, the middle of the QRS complex."""
    slope = np.square(np.diff(samples, axis=0, prepend=samples[:1])).sum(1)
    energy = np.convolve(slope, np.hanning(37), mode="same")
    grid = np.clip(positions[:, None] + np.arange(-reach, reach + 1), 0, len(samples) - 1)
    return grid[np.arange(len(positions)), energy[grid].argmax(1)]


def features(samples: np.ndarray, positions: np.ndarray, reach: int = REACH) -> np.ndarray:
    """Compute features ``(beats, n)`` of the beats of a record. Those of a beat depend on samples up to a second past
    it, on the beats before it, and on the `LATER` next ones."""
    refined_positions = refined(samples, positions, reach)
    of_rhythm = long_rhythm(refined_positions), rhythm(refined_positions)
    return np.concatenate([*of_rhythm, shapes(without_wander(samples), refined_positions)], axis=1)


def without_wander(samples: np.ndarray) -> np.ndarray:
    """Resample to a quarter of the rate and subtract the median over 0.6 s of that over 0.2 s (de Chazal et al.
    2004)."""
    slow = samples[: len(samples) // EVERY * EVERY].reshape(-1, EVERY, samples.shape[1]).mean(1)
    wander = median_filter(median_filter(slow, (18, 1)), (54, 1))
    return slow - wander


def long_rhythm(at: np.ndarray) -> np.ndarray:
    """Compute intervals before and after each beat as logarithms of ratios to means and high quantiles of `MINUTES`
    beats and of the last `NEAR`, ``(beats, LONG_FEATURES)``. Their median would be premature where most beats are."""
    between = np.maximum(np.diff(at), 1) / RATE
    if not len(between):
        return np.zeros((len(at), LONG_FEATURES))
    before = np.concatenate([[np.median(between[:8])], between])  # before[i] ends at beat i
    after = np.concatenate([between, [np.median(between)]])
    rows = np.empty((len(at), 7))
    for i in range(len(at)):
        long, near = before[max(0, i - MINUTES) : i + 2], before[max(0, i - NEAR) : i + 1]
        long = long if len(long) > 8 else before[:NEAR]
        high = np.quantile(long, (0.5, 0.75, 0.9))
        rows[i] = (long.mean(), *high, near.mean(), np.quantile(near, 0.8), long.std() / long.mean())
    mean, middle, upper, highest, close, close_upper, spread = rows.T
    ratios = [np.log(before / each) for each in (mean, upper, highest, close, close_upper)]
    further = [after / before, after / mean, after / highest, np.exp(spread), before, middle / highest, close / mean]
    return np.clip(np.stack([*ratios, *map(np.log, further)], axis=1), -LARGEST, LARGEST)


def rhythm(at: np.ndarray) -> np.ndarray:
    """Compute the intervals around each beat as logarithms of ratios to the running medians of those before, and how
    regular these were."""
    between = np.maximum(np.diff(at), 1) / RATE  # between[i] lies after beat i
    count = len(at)
    first = float(np.median(between[:8])) if len(between) else 0.8
    padded = np.concatenate([np.full(4, first), between, np.full(LATER, first)])
    step = {k: padded[4 + k : 4 + k + count] for k in range(-4, LATER)}
    rows = np.empty((count, 6))
    for i in range(count):
        past = between[max(0, i - 1 - LONG) : i - 1] if i > 1 else np.array([first])
        near, last = past[-MEMORY:], past[-16:]
        usual = np.median(near)
        turns = np.abs(np.diff(last)) if len(last) > 1 else np.zeros(1)
        rows[i] = (
            usual,
            np.median(past),
            past[-9:].mean(),
            np.median(np.abs(np.log(near / usual))),
            np.median(turns) / usual,
            np.quantile(near, 0.1),
        )
    usual, long, short, spread, turning, shortest = rows.T
    log = {k: np.log(each / usual) for k, each in step.items()}
    columns = [
        *(log[k] for k in (-3, -2, -1, 0, 1)),
        np.log(step[-1] / long),
        np.log(step[-1] / short),
        np.log(step[0] / short),
        np.log(step[0] / step[-1]),
        np.log(step[-1] / step[-2]),
        np.log((step[-1] + step[0]) / (2 * usual)),
        log[-1] / (spread + 0.03),
        np.log(step[-1] / shortest),
        spread,
        turning,
        usual,
    ]
    return np.stack(columns, axis=1)


def shapes(x: np.ndarray, at: np.ndarray) -> np.ndarray:
    """Compute the shape of each beat, and how it differs from those of the last `SHAPES` beats and from the most
    typical of these, in both leads."""
    offsets = np.arange(-BEFORE // EVERY, AFTER // EVERY + 1)
    beats = np.pad(x, ((BEFORE, AFTER), (0, 0)), mode="edge")[at[:, None] // EVERY + BEFORE + offsets]
    times = offsets * EVERY / RATE
    qrs, p, t = abs(times) <= 0.1, (times > -0.28) & (times < -0.09), (times > 0.12) & (times < 0.45)
    heights = np.ptp(beats[:, abs(times) <= 0.15], axis=1)
    between = np.diff(at, prepend=at[:1] - RATE) / RATE
    recent: list[int] = []
    unit = _unit(beats[:, qrs] / 1.0)
    alike = np.zeros((0, 0))
    rows = []
    for i, beat in enumerate(beats):
        recent = [*recent, i][-SHAPES:]
        near = unit[recent] @ unit[i]
        alike = np.pad(alike, ((0, 1), (0, 1)))[-len(recent) :, -len(recent) :]
        alike[-1], alike[:, -1] = near, near
        typical = beats[recent[int((alike > 0.9).sum(0).argmax())]]
        same = near[:-1] > 0.9
        interval = float(np.median(between[recent]))
        row = [
            same.mean() if len(same) else 1.0,
            (near[:-1] > 0.75).mean() if len(same) else 1.0,
            float(np.log(between[recent][:-1][same] / interval).mean()) if same.any() else 0.0,
        ]
        scale = np.median(heights[recent], axis=0) + 0.05
        for k in range(x.shape[1]):
            beat_shape, typical_shape = beat[:, k] / scale[k], typical[:, k] / scale[k]
            off = beat_shape - typical_shape
            row += [
                _alike(beat_shape[qrs], typical_shape[qrs]),
                np.log((np.ptp(beat_shape[qrs]) + 0.05) / (np.ptp(typical_shape[qrs]) + 0.05)),
                np.sqrt(np.mean(off[qrs] ** 2)),
                _alike(beat_shape[p], typical_shape[p]),
                np.sqrt(np.mean((off[p] - off[p].mean()) ** 2)),
                np.ptp(beat_shape[p]) - np.ptp(typical_shape[p]),
                np.sqrt(np.mean(off[t] ** 2)),
                off[t].mean(),
                np.abs(beat_shape[qrs]).mean() - np.abs(typical_shape[qrs]).mean(),
                np.abs(beat_shape[qrs]).mean() / (np.abs(beat_shape[qrs]).max() + 0.05),
                beat_shape[qrs].max(),
                beat_shape[qrs].min(),
            ]
        lead = beat[abs(times) <= 0.25, 0] / scale[0]
        rows.append([*row, *lead[::2]])
    return np.asarray(rows)


def _unit(x: np.ndarray) -> np.ndarray:
    """Join both leads of each beat as one vector of length 1, each lead without its mean."""
    flat = (x - x.mean(1, keepdims=True)).reshape(len(x), -1)
    return flat / (np.sqrt(np.square(flat).sum(1, keepdims=True)) + 1e-6)


def _alike(a: np.ndarray, b: np.ndarray) -> float:
    a, b = a - a.mean(), b - b.mean()
    return float(a @ b / (np.sqrt((a @ a) * (b @ b)) + 1e-6))


class Stage(NamedTuple):
    """The two parts of the second stage: trees that find V, and a logistic regression that finds S among the others."""

    trees: Any
    regression: Any

    def classified(self, x: np.ndarray, threshold: float = THRESHOLD) -> np.ndarray:
        """Classify beats as indices into `NAMES`."""
        ventricular = self.trees.predict(x) == "V"
        probabilities = self.regression.predict_proba(x[:, :LONG_FEATURES])  # classes are in order, N and S
        premature = probabilities[:, 1] > threshold
        return np.where(ventricular, NAMES.index("V"), np.where(premature, NAMES.index("S"), NAMES.index("N")))


def fit(x: np.ndarray, classes: np.ndarray, records: np.ndarray) -> Stage:
    """Fit the second stage, from the features, classes and records of beats."""
    from sklearn.ensemble import HistGradientBoostingClassifier
    from sklearn.linear_model import LogisticRegression
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler

    trees = HistGradientBoostingClassifier(
        max_iter=80, learning_rate=0.08, max_leaf_nodes=8, l2_regularization=5, min_samples_leaf=40, random_state=0
    )
    used = np.isin(classes, LEARNED)
    kinds = np.where(classes[used] == "V", "V", "other")
    trees.fit(x[used], kinds, sample_weight=weights(kinds, records[used], TREES))
    used = np.isin(classes, list(RHYTHM))
    regression = make_pipeline(StandardScaler(), LogisticRegression(C=0.01, max_iter=300))
    shares = weights(classes[used], records[used], RHYTHM)
    regression.fit(x[used, :LONG_FEATURES], classes[used], logisticregression__sample_weight=shares)
    return Stage(trees, regression)


def weights(classes: np.ndarray, records: np.ndarray, shares: dict[str, float]) -> np.ndarray:
    """Compute weights of beats with a mean of 1, whose sums over classes are as ``shares``; a record has the root of
    its beats within a class."""
    result = np.zeros(len(classes))
    for name, share in shares.items():
        in_class = classes == name
        counts = {record: np.sum(in_class & (records == record)) for record in np.unique(records[in_class])}
        result[in_class] = [counts[record] ** -0.5 for record in records[in_class]]
        result[in_class] *= share / result[in_class].sum()
    return result / result.mean()


def read(rows: Path, *splits: str) -> dict[str, dict[str, np.ndarray]]:
    """Read samples, positions and classes of records."""
    from pyarrow import parquet

    beats_by_record = {}
    for split in splits:
        table = parquet.read_table(rows / f"{split}.parquet")
        for i, name in enumerate(table["record"].to_pylist()):
            values = table["input_values"][i].values
            samples = values.flatten().to_numpy().reshape(len(values), -1).astype(np.float64)
            positions, classes = (np.array(table[column][i].as_py()) for column in ("positions", "classes"))
            beats_by_record[name] = {"samples": samples, "positions": positions, "classes": classes}
    return beats_by_record


def table_of(beats: dict[str, dict[str, np.ndarray]], names: list[str]) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Collect features, classes and records of all beats."""
    x = np.concatenate([features(beats[name]["samples"], beats[name]["positions"]) for name in names])
    classes = np.concatenate([beats[name]["classes"] for name in names])
    return x, classes, np.concatenate([[name] * len(beats[name]["classes"]) for name in names])


def ids(classes: np.ndarray) -> np.ndarray:
    """Convert classes to indices into `NAMES`."""
    return np.array([NAMES.index(name) for name in classes])


def scores(predicted: np.ndarray, true: np.ndarray) -> dict[str, Any]:
    """Compute the scores of paired classes, as `benchmarks/ecg.py`."""
    overall, details = event_scores(predicted, true, NAMES)
    return {**overall, **details}


def choose(rows: Path) -> None:
    """Print the scores of DS1, cross-validated by record, for each least probability of S, and the best of these: the
    one whose sensitivity and positive predictivity are both the most over the aims."""
    from sklearn.model_selection import GroupKFold

    x, classes, records = table_of(read(rows, "train", "valid"), list(DS1))
    stages = [(fit(x[a], classes[a], records[a]), b) for a, b in GroupKFold(11).split(x, classes, records)]
    reached = {}
    for threshold in THRESHOLDS:
        predicted = np.zeros(len(x), dtype=np.int64)
        for stage, held_out in stages:
            predicted[held_out] = stage.classified(x[held_out], threshold)
        result = scores(predicted, ids(classes))
        s, v = (result["classes"][name] for name in "SV")
        reached[threshold] = min(s["recall"] / AIMS[0], s["precision"] / AIMS[1])
        print(
            f"S from {threshold:g}: accuracy {result['accuracy']:.3f}, S {s['recall']:.3f} / {s['precision']:.3f}, "
            f"V {v['recall']:.3f} / {v['precision']:.3f}"
        )
    print(f"best: {max(reached, key=lambda threshold: reached[threshold]):g}")


def score(rows: Path, run: Path) -> dict[str, Any]:
    """Fit to DS1, and score DS2 once: at annotated beats, and at those that the first stage of ``run`` detects."""
    began = time.process_time()
    stage = fit(*table_of(read(rows, "train", "valid"), list(DS1)))
    fitted, test = time.process_time() - began, read(rows, "test")
    x, classes, records = table_of(test, list(DS2))
    predicted, truth = stage.classified(x), ids(classes)
    annotated = {**scores(predicted, truth), "premature": premature(predicted, truth, records)}
    events = [json.loads(row["predicted"]) for row in predict_run(run, source=str(rows / "test.parquet"))]
    pairs, waits = [], []
    for (name, beats), detected_beats in zip(test.items(), events, strict=True):
        assert name in DS2
        positions = np.array([at for at, *_ in detected_beats])
        predicted = stage.classified(features(beats["samples"], positions))
        pairs.append(paired_classes(positions, predicted, beats["positions"], ids(beats["classes"]), TOLERANCE))
        waits.append(positions[LATER:] - positions[:-LATER])
    detected = scores(*(np.concatenate(each) for each in zip(*pairs, strict=True)))
    # a beat is answered when the first stage has reported the second one after it
    task = make_task(load_recipe(str(run / "recipe.yaml")))
    delay = np.concatenate(waits) + task.delay + latest_report(task.stride, task.tolerance)
    seconds = {name: float(np.quantile(delay, share)) / RATE for name, share in (("median", 0.5), ("99 %", 0.99))}
    return {
        "annotated": annotated,
        "detected": detected,
        "delay_seconds": seconds,
        "features": x.shape[1],
        "seconds": fitted,
    }


def premature(predicted: np.ndarray, true: np.ndarray, records: np.ndarray) -> dict[str, list[int]]:
    """Count for each record the beats of class S, how many of them are detected, and how many others are called S."""
    s, detected = true == NAMES.index("S"), predicted == NAMES.index("S")
    return {
        str(record): [int(np.sum(each[records == record])) for each in (s, s & detected, detected & ~s)]
        for record in np.unique(records)
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    command = commands.add_parser("choose")
    command.add_argument("rows", type=Path)
    command = commands.add_parser("score")
    command.add_argument("rows", type=Path)
    command.add_argument("run", type=Path)
    command.add_argument("--out", type=Path, required=True)
    options = parser.parse_args()
    if options.command == "choose":
        choose(options.rows)
    else:
        result = score(options.rows, options.run)
        save_results(options.out, f"python benchmarks/ecg_beats.py {' '.join(sys.argv[1:])}", result)


if __name__ == "__main__":
    main()
