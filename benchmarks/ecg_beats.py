"""Classes of heartbeats from their rhythm and shape: a second stage over beats whose positions are known or detected.

    python benchmarks/ecg_beats.py choose rows/                       # on DS1 alone, cross-validated by record
    python benchmarks/ecg_beats.py score rows/ runs/causal --out benchmarks/results/ecg-beats-cpu.json

rows/ is that of `benchmarks/ecg.py prepare`, and the run, a first stage that detects beats, that of its `train`. The
second stage reads for each beat the intervals around it, as ratios to running medians of those before, and its shape in
both leads beside the shapes of the beats before. It answers when the next two beats have been detected. All choices
were made on DS1; `score` fits to all of DS1 and scores DS2: at annotated beats, and at those that the first stage
detects.
"""

from __future__ import annotations

import numpy as np
from scipy.ndimage import median_filter

RATE = 360
CLASSES = ("N", "S", "V", "F", "Q")
BEFORE, AFTER, EVERY = 144, 180, 4  # samples of a beat's shape around it, and between those that are kept
REACH = 30  # samples that a position may move to the middle of its QRS complex
MEMORY = 48  # beats of a running median
LONG = 240  # beats of a longer one
SHAPES = 64  # beats whose shapes are compared
LATER = 2  # beats after one that its answer waits for


def refined(samples: np.ndarray, places: np.ndarray, reach: int) -> np.ndarray:
    """Positions moved to the largest energy of the slope nearby, the middle of the QRS complex."""
    slope = np.square(np.diff(samples, axis=0, prepend=samples[:1])).sum(1)
    energy = np.convolve(slope, np.hanning(37), mode="same")
    grid = np.clip(places[:, None] + np.arange(-reach, reach + 1), 0, len(samples) - 1)
    return grid[np.arange(len(places)), energy[grid].argmax(1)]


def features(samples: np.ndarray, places: np.ndarray, reach: int = REACH) -> np.ndarray:
    """Features ``(beats, n)`` of the beats of a record. Those of a beat depend on samples up to a second past it, on
    the beats before it, and on the `LATER` next ones."""
    at = refined(samples, places, reach)
    return np.concatenate([rhythm(at), shapes(without_wander(samples), at)], axis=1)


def without_wander(samples: np.ndarray) -> np.ndarray:
    """Samples at a quarter of the rate, less the median over 0.6 s of the median over 0.2 s (de Chazal et al. 2004)."""
    slow = samples[: len(samples) // EVERY * EVERY].reshape(-1, EVERY, samples.shape[1]).mean(1)
    wander = median_filter(median_filter(slow, (18, 1)), (54, 1))
    return slow - wander


def rhythm(at: np.ndarray) -> np.ndarray:
    """Intervals around each beat as logarithms of ratios to the running medians of those before, and how regular these
    were."""
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
    """The shape of each beat, and how it differs from those of the last `SHAPES` beats and from the most typical of
    these, in both leads."""
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
            own, other = beat[:, k] / scale[k], typical[:, k] / scale[k]
            off = own - other
            row += [
                _alike(own[qrs], other[qrs]),
                np.log((np.ptp(own[qrs]) + 0.05) / (np.ptp(other[qrs]) + 0.05)),
                np.sqrt(np.mean(off[qrs] ** 2)),
                _alike(own[p], other[p]),
                np.sqrt(np.mean((off[p] - off[p].mean()) ** 2)),
                np.ptp(own[p]) - np.ptp(other[p]),
                np.sqrt(np.mean(off[t] ** 2)),
                off[t].mean(),
                np.abs(own[qrs]).mean() - np.abs(other[qrs]).mean(),
                np.abs(own[qrs]).mean() / (np.abs(own[qrs]).max() + 0.05),
                own[qrs].max(),
                own[qrs].min(),
            ]
        lead = beat[abs(times) <= 0.25, 0] / scale[0]
        rows.append([*row, *lead[::2]])
    return np.asarray(rows)


def _unit(x: np.ndarray) -> np.ndarray:
    """Both leads of each beat as one vector of length 1, each lead without its mean."""
    flat = (x - x.mean(1, keepdims=True)).reshape(len(x), -1)
    return flat / (np.sqrt(np.square(flat).sum(1, keepdims=True)) + 1e-6)


def _alike(a: np.ndarray, b: np.ndarray) -> float:
    a, b = a - a.mean(), b - b.mean()
    return float(a @ b / (np.sqrt((a @ a) * (b @ b)) + 1e-6))
