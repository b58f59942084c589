"""Surprise of log lines: precision and recall on labelled lines, beside counts of templates and an isolation forest.

    python benchmarks/watch.py RUNS --log BGL_2k.log

The log is BGL of LogHub (https://github.com/logpai/loghub, BGL/BGL_2k.log), whose first word is the label of a line,
``-`` if it is normal. In order of time, half of the lines are for training, a fifth for calibration and the rest for
the test; lines with another label are left out of the first two, as every method learns what is normal. The label is
removed, and nothing else. All methods have conformal thresholds for the same rates of alarms. Also measured: lines a
second of one thread, many at once and one by one. A finished run in RUNS is used.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import re
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
from sklearn.decomposition import TruncatedSVD
from sklearn.ensemble import IsolationForest
from sklearn.feature_extraction.text import TfidfVectorizer
from sklearn.metrics import average_precision_score, roc_auc_score
from sklearn.pipeline import make_pipeline

from lagwise.runs.watch import Watch
from lagwise.training import read_metrics
from lagwise_papers.bench.run_queue import keep

_SEED = 1
_SHARES = (0.45, 0.5, 0.7)  # where train, valid and calibration end
_ALARMS = (0.01, 0.05)  # alarms per normal line, at most
_ONE_BY_ONE = 100  # lines


def lagwise(*words: str, **options: Any) -> subprocess.CompletedProcess[str]:
    """Run a command of lagwise on one thread. Fails if it does."""
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-m", "lagwise", *words]
    return subprocess.run(command, check=True, text=True, stdout=subprocess.PIPE, env=environment, **options)


def read_log(log: Path) -> tuple[dict[str, list[str]], list[str], np.ndarray]:
    """Read normal lines to learn from by split, the lines to test, and whether each of these has another label."""
    lines = log.read_text(errors="backslashreplace").splitlines()
    labels, texts = zip(*(line.split(" ", 1) for line in lines), strict=True)
    odd = np.array(labels) != "-"
    ends = [0, *(round(share * len(lines)) for share in _SHARES)]
    learned = {
        split: [texts[i] for i in range(start, stop) if not odd[i]]
        for split, start, stop in zip(("train", "valid", "test"), ends[:-1], ends[1:], strict=True)
    }
    return learned, list(texts[ends[-1] :]), odd[ends[-1] :]


def templates(learned: dict[str, list[str]], lines: list[str]) -> tuple[np.ndarray, np.ndarray]:
    """Score calibration and test lines: the negative log-frequency of a line's template, which has ``*`` in place of
    every word with a digit."""

    def template(line: str) -> str:
        return " ".join("*" if re.search(r"\d", word) else word for word in line.split())

    counts = Counter(map(template, learned["train"] + learned["valid"]))
    scores = [[-math.log(1 + counts[template(line)]) for line in each] for each in (learned["test"], lines)]
    return np.array(scores[0]), np.array(scores[1])


def forest(learned: dict[str, list[str]], lines: list[str]) -> tuple[np.ndarray, np.ndarray]:
    """Score calibration and test lines by scikit-learn's isolation forest on TF-IDF of words without digits."""
    words = TfidfVectorizer(token_pattern=r"(?u)\b[^\W\d]+\b")
    trees = IsolationForest(n_estimators=300, random_state=_SEED)
    model = make_pipeline(words, TruncatedSVD(20, random_state=_SEED), trees)
    model.fit(learned["train"] + learned["valid"])
    return -model.score_samples(learned["test"]), -model.score_samples(lines)


def p_values(calibration: np.ndarray, scores: np.ndarray) -> np.ndarray:
    """Compute the conformal p-value of each score."""
    return ((calibration >= scores[:, None]).sum(1) + 1) / (len(calibration) + 1)


def figures(scores: np.ndarray, p: np.ndarray, odd: np.ndarray) -> dict[str, Any]:
    """Compute precision, recall and F1 of the alarms at each rate, the share of normal lines with one, and figures of
    all thresholds together."""
    result: dict[str, Any] = {}
    for rate in _ALARMS:
        alarm = p <= rate
        hits, count = int((alarm & odd).sum()), int(alarm.sum())
        row = {"precision": hits / max(1, count), "recall": hits / int(odd.sum())}
        row["f1"] = 2 * hits / (count + int(odd.sum()))
        result[str(rate)] = {**row, "alarms_of_normal_lines": float((alarm & ~odd).sum() / (~odd).sum())}
    result["average_precision"] = float(average_precision_score(odd, scores))
    result["roc_auc"] = float(roc_auc_score(odd, scores))
    return result


def watched(run: Path, lines: list[str], odd: np.ndarray, *options: str) -> dict[str, Any]:
    """Measure the figures of the command for these lines, its scores, threshold for the lowest rate, and seconds."""
    start = time.perf_counter()
    words = ("watch", str(run), "--json", "--alarms", str(min(_ALARMS)), *options)
    out = lagwise(*words, input="".join(f"{line}\n" for line in lines)).stdout
    seconds = time.perf_counter() - start
    rows = [json.loads(line) for line in out.splitlines()]
    scores, p = (np.array([row[name] for row in rows]) for name in ("bits_per_byte", "p"))
    result = {**figures(scores, p, odd), "seconds": seconds, "threshold": rows[0]["threshold"]}
    return {**result, "scores": scores.round(3).tolist()}


def speeds(run: Path, lines: list[str]) -> dict[str, float]:
    """Measure the lines per second of one core, many at once and one by one, without the start of the process."""
    watch = Watch(run, alarms=min(_ALARMS))
    result = {"bytes_per_line": float(np.mean([len(line) + 1 for line in lines]))}
    for name, step, count in (("lines_per_second", len(lines), len(lines)), ("one_by_one", 1, _ONE_BY_ONE)):
        start = time.process_time()  # other programs may share the core
        for i in range(0, count, step):
            watch.measure([line.encode() for line in lines[i : i + step]])
        result[name] = count / (time.process_time() - start)
    return result


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("runs", type=Path, help="folder for the text and the run")
    parser.add_argument("--log", type=Path, required=True, help="BGL_2k.log")
    parser.add_argument("--steps", type=int, default=300, help="training steps (300)")
    parser.add_argument("--learn", type=float, default=1e-4, help="learning rate of dynamic evaluation (1e-4)")
    parser.add_argument("--results", type=Path, default=Path("benchmarks/results/watch-cpu.json"))
    arguments = parser.parse_args()
    learned, lines, odd = read_log(arguments.log)
    text, run = arguments.runs / "text", arguments.runs / "run"
    text.mkdir(parents=True, exist_ok=True)
    for split, split_lines in learned.items():
        (text / f"{split}.txt").write_text("".join(f"{line}\n" for line in split_lines))
    options = [f"training.steps={arguments.steps}", f"training.seed={_SEED}"]
    if not (run / "config.json").is_file():
        lagwise("train", "--data", str(text), "--out", str(run), "--resume", "auto", *options)
    counts = {split: len(split_lines) for split, split_lines in learned.items()}
    keep(arguments.results, "data", {**counts, "lines": len(lines)})
    for name, method in (("templates", templates), ("isolation forest", forest)):
        calibration, scores = method(learned, lines)
        keep(arguments.results, name, figures(scores, p_values(calibration, scores), odd))
    keep(arguments.results, "lagwise watch", watched(run, lines, odd))
    keep(arguments.results, "lagwise watch --learn", watched(run, lines, odd, "--learn", str(arguments.learn)))
    trained = max(line.get("seconds", 0) for line in read_metrics(run))
    keep(arguments.results, "speed", {**speeds(run, lines), "training_seconds": trained, "steps": arguments.steps})
    keep(arguments.results, "odd", np.flatnonzero(odd).tolist())


if __name__ == "__main__":
    main()
