"""Compare text classifiers with TF-IDF on labelled rows: `python benchmarks/classification.py DATA --out FILE`.

Each model is the recipe `classify` with a preset, or as it is (`recipe`), trained in its own folder below --runs. An
existing run is resumed, and a finished one is only evaluated. Results are added to an existing results file.

    python benchmarks/classification.py imdb/ --out benchmarks/results/imdb-cpu.json --models tnn training.epochs=3
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any

from lagwise.data import open_rows
from lagwise.models.presets import PRESETS
from lagwise.runs import evaluate_run
from lagwise.training import load_recipe, read_metrics, resume, train
from lagwise_papers.bench.timing import save_results


def measure(run: Path, data: str, overrides: list[str]) -> dict[str, Any]:
    """Train or resume a run; return its scores, its curve, and the cost of training."""
    if (run / "recipe.yaml").is_file():
        resume(run)
    else:
        recipe = load_recipe("classify", overrides)
        recipe.data.source = data
        train(recipe, run)
    scores = evaluate_run(run)
    recipe, about = load_recipe(str(run / "recipe.yaml")), json.loads((run / "run.json").read_text())
    lines = read_metrics(run)
    return {
        "parameters": about["parameters"],
        "threads": about["threads"],
        "epochs": recipe.training.epochs,
        "steps": recipe.training.steps,
        "seconds": sum(line.get("train_runtime", 0.0) for line in lines),
        "valid": scores["valid"],
        "test": scores["test"],
        "curve": [(line["step"], line["eval_accuracy"]) for line in lines if "eval_accuracy" in line],
    }


def tf_idf(data: str, words: int) -> dict[str, Any]:
    """Score logistic regression (C = 4) on TF-IDF features of up to ``words`` words."""
    from sklearn.feature_extraction.text import TfidfVectorizer
    from sklearn.linear_model import LogisticRegression

    train_rows, test_rows = (open_rows(data).read()[split] for split in ("train", "test"))
    vectors = TfidfVectorizer(ngram_range=(1, words), min_df=2, sublinear_tf=True)
    x = vectors.fit_transform(train_rows["text"][:])
    model = LogisticRegression(C=4.0, max_iter=500).fit(x, train_rows["label"][:])
    accuracy = model.score(vectors.transform(test_rows["text"][:]), test_rows["label"][:])
    return {"parameters": x.shape[1] + 1, "test": {"accuracy": float(accuracy), "rows": len(test_rows)}}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", help="a table with columns text and label, and splits train and test")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--models", default=",".join(PRESETS), help="presets or `recipe`, separated by commas")
    parser.add_argument("--runs", type=Path, default=Path("runs/classification"))
    parser.add_argument("--tf-idf", action="store_true", help="also logistic regression on words and bigrams")
    options, overrides = parser.parse_known_args()
    results = json.loads(options.out.read_text())["results"] if options.out.is_file() else {}
    command = f"python benchmarks/classification.py {' '.join(sys.argv[1:])}"

    def add(name: str, result: dict[str, Any]) -> None:
        results[name] = result
        save_results(options.out, command, results)
        print(f"{name:<24} test accuracy {result['test']['accuracy']:.4f}", flush=True)

    for words in (1, 2) if options.tf_idf else ():
        add(f"tf-idf of {words} word(s)", tf_idf(options.data, words))
    for name in options.models.split(","):
        override = "training.first_answer=none" if name == "recipe" else f"model={name}"
        add(name, measure(options.runs / name, options.data, [override, *overrides]))


if __name__ == "__main__":
    main()
