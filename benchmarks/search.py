"""Search documents by vectors (`lagwise embed`), beside TF-IDF (scikit-learn) and BM25 (bm25s).

    python benchmarks/search.py FOLDER OUT.json

A known-item search on text that every Python has: of each docstring of the standard library with a summary of at least
four words, apart from 20 words or more of explanation, the summary is a query and the explanation the document to find.
Models are trained on the documents alone, without queries or any labels, in FOLDER; finished runs there are used again.
Recall at k is the share of queries whose document is among the first k. `centred` vectors have the mean of all
documents' vectors subtracted; `with TF-IDF` adds the cosines of both, each scaled to deviation one over the documents.
"""

from __future__ import annotations

import argparse
import ast
import json
import sys
import time
from pathlib import Path
from typing import Any

import bm25s
import numpy as np
import pyarrow.parquet as parquet
from sklearn.feature_extraction.text import TfidfVectorizer

from lagwise.data.sources import open_source
from lagwise.runs import embed_run
from lagwise.training import load_recipe, train_or_resume
from lagwise_papers.bench.timing import save_results

RUNS = {
    "encoder": ("tnn-mlm", ["data.vocab_size=4096", "training.steps=800", "training.evaluate_every=200"]),
    "best-lm": ("best-lm", ["data.tokenizer=bpe", "data.vocab_size=4096", "training.steps=1000"]),
}
_SUMMARY, _EXPLANATION = 4, 20  # words, at least


def documents() -> list[tuple[str, str, str]]:
    """Place, explanation and summary of each docstring; repeated ones once."""
    root, found, seen = Path(ast.__file__).parent, dict[str, tuple[str, str]](), set[str]()
    for path in sorted(open_source("stdlib").paths):
        for node in ast.walk(ast.parse(path.read_bytes())):
            if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
                summary, _, rest = (ast.get_docstring(node) or "").partition("\n\n")
                query = " ".join(summary.split())
                if len(query.split()) >= _SUMMARY and len(rest.split()) >= _EXPLANATION and query not in seen:
                    place = f"{path.relative_to(root).as_posix()}:{getattr(node, 'name', '')}"
                    if found.setdefault(rest.strip(), (place, query)) == (place, query):
                        seen.add(query)
    return [(place, text, query) for text, (place, query) in found.items()]


def write(rows: list[tuple[str, str]], path: Path) -> str:
    path.write_text("".join(json.dumps({"id": place, "text": text}) + "\n" for place, text in rows), encoding="utf-8")
    return str(path)


def recalls(scores: np.ndarray) -> dict[str, float]:
    """Compute recalls from scores (queries, documents); the document of a query has its number."""
    own = np.diagonal(scores)[:, None]
    ranks = (scores > own).sum(1) + (scores == own).sum(1)  # the last of equal ones
    return {f"recall@{k}": float((ranks <= k).mean()) for k in (1, 10, 100)} | {"mrr": float((1 / ranks).mean())}


def scaled(scores: np.ndarray) -> np.ndarray:
    return (scores - scores.mean(1, keepdims=True)) / scores.std(1, keepdims=True)


def vectors(run: Path, source: str, pooling: str) -> np.ndarray:
    out = run.with_name(f"{run.name}-{Path(source).stem}-{pooling}.parquet")
    embed_run(run, [source], out, pooling=pooling)
    return np.stack(parquet.read_table(out)["vector"].to_numpy())


def main(given: argparse.Namespace) -> None:
    given.folder.mkdir(parents=True, exist_ok=True)
    rows = documents()
    texts, queries = [text for _, text, _ in rows], [query for *_, query in rows]
    source = write([(place, text) for place, text, _ in rows], given.folder / "documents.jsonl")
    asked = write([(place, query) for place, _, query in rows], given.folder / "queries.jsonl")
    found: dict[str, Any] = {}
    tfidf = TfidfVectorizer(sublinear_tf=True).fit(texts)
    lexical = (tfidf.transform(queries) @ tfidf.transform(texts).T).toarray()
    found["TF-IDF"] = recalls(lexical)
    index = bm25s.BM25()
    index.index(bm25s.tokenize(texts, stopwords=None, show_progress=False), show_progress=False)
    tokens = bm25s.tokenize(queries, stopwords=None, show_progress=False, return_ids=False)
    found["BM25"] = recalls(np.stack([index.get_scores(each) for each in tokens]))
    found["chance"] = {f"recall@{k}": k / len(rows) for k in (1, 10, 100)}
    for name, (recipe, overrides) in RUNS.items():
        run, settings = given.folder / name, load_recipe(recipe, overrides)
        settings.data.source = source
        if not (run / "config.json").is_file():
            train_or_resume(settings, run)
        for pooling in ("mean", "last"):
            began = time.perf_counter()
            own, other = vectors(run, source, pooling), vectors(run, asked, pooling)
            found[f"{name}, {pooling}"] = {**recalls(other @ own.T), "seconds": time.perf_counter() - began}
            middle = own.mean(0)
            own, other = ((each - middle) / np.linalg.norm(each - middle, axis=1)[:, None] for each in (own, other))
            found[f"{name}, {pooling}, centred"] = recalls(other @ own.T)
            found[f"{name}, {pooling}, centred, with TF-IDF"] = recalls(scaled(other @ own.T) + scaled(lexical))
        save_results(
            given.out,
            " ".join(["python", *sys.argv]),
            {"documents": len(rows), "bytes": sum(len(text.encode()) for text in texts), "runs": RUNS, "recall": found},
        )
    for name, scores in found.items():
        print(name, {key: round(value, 3) for key, value in scores.items()})


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("folder", type=Path, help="folder for the documents and runs")
    parser.add_argument("out", type=Path, help="results file")
    main(parser.parse_args())
