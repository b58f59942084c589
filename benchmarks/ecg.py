"""Detect and classify heartbeats of the MIT-BIH arrhythmia database in a stream, with separate patients for testing.

    python benchmarks/ecg.py prepare mit-bih/ rows/                # .parquet files: DS1 (train, valid), DS2 (test)
    python benchmarks/ecg.py train rows/ runs/causal [KEY=VALUE ...]   # benchmarks/ecg.yaml, then FINE
    python benchmarks/ecg.py train rows/ runs/two-sided model.causal=false task.delay=0
    python benchmarks/ecg.py score runs/causal runs/two-sided --out benchmarks/results/ecg-cpu.json

Patients are split as in de Chazal et al. 2004, without records of pacemakers. Every fifth of the 22 records of DS1 is
held out for validation. Classes are those of AAMI EC57. `score` reports two results. Without positions, the model sees
only samples; a reported beat within 150 ms of an annotated one matches it, and missed beats count as errors. With
positions, the class is read where a beat is annotated, as in most published results.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any

import numpy as np

from lagwise.runs import evaluate_run
from lagwise.training import load_recipe, read_metrics, resume, train
from lagwise_papers.bench.timing import save_results

DS1 = "101 106 108 109 112 114 115 116 118 119 122 124 201 203 205 207 208 209 215 220 223 230".split()  # noqa: SIM905
DS2 = "100 103 105 111 113 117 121 123 200 202 210 212 213 214 219 221 222 228 231 232 233 234".split()  # noqa: SIM905
VALID = DS1[3::5]
SPLITS = {"train": [r for r in DS1 if r not in VALID], "valid": VALID, "test": DS2}
AAMI = {"N": "NLRej", "S": "AaJS", "V": "VE", "F": "F", "Q": "/fQ"}
RATE = 360  # Hz
RECIPE = Path(__file__).with_name("ecg.yaml")
FINE = (  # overrides for a second training from the first one's weights: weaker augmentation, another class weight
    "task.augment={stretch: 0.12, mix: 0.4, filter: 0.4, wander: 0.4, noise: 0.1, drop: 0.15}",
    "task.class_weights={V: 2}",
    "training.steps=700",
)


def read_record(path: Path) -> dict[str, Any]:
    """Read samples in millivolts, lead MLII first, and the positions and AAMI classes of the beats."""
    import wfdb

    record, notes = wfdb.rdrecord(str(path)), wfdb.rdann(str(path), "atr")
    if record.fs != RATE:
        raise ValueError(f"{path} has {record.fs} samples per second, not {RATE}")
    classes = {symbol: name for name, symbols in AAMI.items() for symbol in symbols}
    beats = [(int(at), classes[s]) for at, s in zip(notes.sample, notes.symbol, strict=True) if s in classes]
    order = sorted(range(record.n_sig), key=lambda i: record.sig_name[i] != "MLII")
    samples = record.p_signal[:, order].astype(np.float32)
    return {"input_values": samples, "positions": [at for at, _ in beats], "classes": [name for _, name in beats]}


def prepare(records: Path, out: Path) -> None:
    """Write a .parquet file per split, with one row per record."""
    import pyarrow as pa
    from pyarrow import parquet

    out.mkdir(parents=True, exist_ok=True)
    for split, names in SPLITS.items():
        rows = [read_record(records / name) for name in names]
        flat = np.concatenate([row["input_values"] for row in rows])
        offsets = np.cumsum([0, *(len(row["input_values"]) for row in rows)]).astype(np.int32)
        vectors = pa.FixedSizeListArray.from_arrays(pa.array(flat.reshape(-1)), flat.shape[1])
        columns = {"record": pa.array(names), "input_values": pa.ListArray.from_arrays(offsets, vectors)}
        columns |= {name: pa.array([row[name] for row in rows]) for name in ("positions", "classes")}
        parquet.write_table(pa.table(columns), out / f"{split}.parquet")
        print(f"{split}: {len(names)} records, {sum(len(row['classes']) for row in rows):,} beats", flush=True)


def train_run(rows: Path, run: Path, overrides: list[str]) -> None:
    """Train RUN-first, and then RUN from its weights. Interrupted trainings are resumed."""
    first = first_of(run)
    for folder, changes in ((first, overrides), (run, [f"model.init_from={first}", *FINE, *overrides])):
        if (folder / "recipe.yaml").is_file():
            resume(folder)
            continue
        recipe = load_recipe(str(RECIPE), changes)
        recipe.data.source = str(rows)
        train(recipe, folder)


def first_of(run: Path) -> Path:
    """Return the folder of the first training."""
    return run.with_name(f"{run.name}-first")


def score(run: Path) -> dict[str, Any]:
    """A run's scores on DS2, its delay, and the cost of training."""
    evaluation = evaluate_run(run)
    recipe, about = load_recipe(str(run / "recipe.yaml")), json.loads((run / "run.json").read_text())
    metrics = {name: read_metrics(folder) for name, folder in (("first", first_of(run)), ("fine", run))}
    return {
        "causal": recipe.model.get("causal", True),
        "parameters": about["parameters"],
        "threads": about["threads"],
        "steps": {name: int(lines[-1]["step"]) for name, lines in metrics.items()},
        "seconds": sum(line.get("train_runtime", 0.0) for lines in metrics.values() for line in lines),
        "delay_seconds": evaluation["delay"] / RATE,
        "without_positions": {**evaluation["test"], **{name: evaluation[name] for name in ("classes", "confusion")}},
        "with_positions": evaluation["known_positions"],
        "valid": evaluation["valid"],  # without positions
        "task": recipe.task,
        "model": {key: value for key, value in recipe.model.items() if key != "init_from"},  # without init_from
        "curve": {name: [line for line in lines if "eval_macro_f1" in line] for name, lines in metrics.items()},
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    command = commands.add_parser("prepare")
    command.add_argument("records", type=Path)
    command.add_argument("out", type=Path)
    command = commands.add_parser("train")
    command.add_argument("rows", type=Path)
    command.add_argument("run", type=Path)
    command.add_argument("overrides", nargs="*")
    command = commands.add_parser("score")
    command.add_argument("runs", type=Path, nargs="+")
    command.add_argument("--out", type=Path, required=True)
    options = parser.parse_args()
    if options.command == "prepare":
        prepare(options.records, options.out)
    elif options.command == "train":
        train_run(options.rows, options.run, options.overrides)
    else:
        results = json.loads(options.out.read_text())["results"] if options.out.is_file() else {}
        for run in options.runs:
            results[run.name] = score(run)
            save_results(options.out, f"python benchmarks/ecg.py {' '.join(sys.argv[1:])}", results)


if __name__ == "__main__":
    main()
