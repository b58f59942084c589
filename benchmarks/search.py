"""Search documents by vectors (`lagwise embed`), beside TF-IDF (scikit-learn) and BM25 (bm25s).

    python benchmarks/search.py FOLDER OUT.json

A known-item search on text that every Python has: of each docstring of the standard library with a summary of at least
four words, apart from 20 words or more of explanation, the summary is a query and the explanation the document to find.
Models are trained on the documents alone, without queries or any labels, in FOLDER; finished runs there are used again.
Recall at k is the share of queries whose document is among the first k; `same file` is the share of documents of which
the most similar other one is of the same file. From `centred` vectors the mean of all documents' is subtracted;
`whitened` ones are then decorrelated and scaled to equal variance, by what the documents' have. `with TF-IDF` adds the
cosines of both, each divided by its deviation over the documents.
"""

from __future__ import annotations

import argparse
import ast
import json
import sys
from pathlib import Path

import bm25s
import numpy as np
import pyarrow.parquet as parquet
from sklearn.feature_extraction.text import TfidfVectorizer
from sklearn.preprocessing import normalize

from lagwise.data.tokens import open_source
from lagwise.runs import embed_run
from lagwise.training import load_recipe, train_or_resume
from lagwise_papers.bench.timing import save_results

RUNS = {
    "encoder": ("tnn-mlm", ["data.vocab_size=4096", "training.steps=800", "training.evaluate_every=200"]),
    "best-lm": ("best-lm", ["data.tokenizer=bpe", "data.vocab_size=4096", "training.steps=1000"]),
}
_SUMMARY, _EXPLANATION = 4, 20  # words, at least


def documents() -> list[tuple[str, str, str]]:
    """List location, explanation and summary of each docstring; repeated ones once."""
    root, by_explanation, seen = Path(ast.__file__).parent, dict[str, tuple[str, str]](), set[str]()
    for path in sorted(open_source("stdlib").paths):
        for node in ast.walk(ast.parse(path.read_bytes())):
            if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
                summary, _, explanation = (ast.get_docstring(node) or "").partition("\n\n")
                query = " ".join(summary.split())
                if len(query.split()) >= _SUMMARY and len(explanation.split()) >= _EXPLANATION and query not in seen:
                    location = f"{path.relative_to(root).as_posix()}:{getattr(node, 'name', '')}"
                    if by_explanation.setdefault(explanation.strip(), (location, query)) == (location, query):
                        seen.add(query)
    return [(location, text, query) for text, (location, query) in by_explanation.items()]


def scaled(scores: np.ndarray) -> np.ndarray:
    return scores / (scores.std(1, keepdims=True) + 1e-9)  # none is above 0 for a query of unknown words


def main(args: argparse.Namespace) -> None:
    args.folder.mkdir(parents=True, exist_ok=True)
    locations, texts, queries = zip(*documents(), strict=True)
    for name, column in {"documents": texts, "queries": queries}.items():
        lines = [json.dumps({"id": id, "text": text}) + "\n" for id, text in zip(locations, column, strict=True)]
        (args.folder / f"{name}.jsonl").write_text("".join(lines), encoding="utf-8")
    files = np.array([location.split(":")[0] for location in locations])
    same = (files == files[:, None]) & ~np.eye(len(files), dtype=bool)
    figures = {"chance": {f"recall@{k}": k / len(texts) for k in (1, 10, 100)} | {"same file": float(same.mean())}}

    def save(name: str, query_scores: np.ndarray, between: np.ndarray) -> None:
        """Keep the figures of scores (queries, documents), whose diagonal is right, and of those between documents."""
        right = np.diagonal(query_scores)[:, None]
        ranks = (query_scores > right).sum(1) + (query_scores == right).sum(1)  # the last of equal ones
        figures[name] = {f"recall@{k}": float((ranks <= k).mean()) for k in (1, 10, 100)}
        nearest = np.where(np.eye(len(files), dtype=bool), -np.inf, between).argmax(1)
        figures[name]["same file"] = float((files[nearest] == files).mean())

    tfidf = TfidfVectorizer(sublinear_tf=True).fit(texts)
    terms = tfidf.transform(texts)
    lexical = [(each @ terms.T).toarray() for each in (tfidf.transform(queries), terms)]
    save("TF-IDF", *lexical)
    index, options = bm25s.BM25(), {"stopwords": None, "show_progress": False}
    index.index(bm25s.tokenize(texts, **options), show_progress=False)
    split = [bm25s.tokenize(each, return_ids=False, **options) for each in (queries, texts)]
    save("BM25", *(np.stack([index.get_scores(words) for words in each]) for each in split))
    for name, (recipe, overrides) in RUNS.items():
        run, settings = args.folder / name, load_recipe(recipe, overrides)
        settings.data.source = str(args.folder / "documents.jsonl")
        if not (run / "config.json").is_file():
            train_or_resume(settings, run)
        for pooling in ("mean", "last"):
            tables = []
            for source in ("queries", "documents"):
                out = args.folder / f"{name}-{source}-{pooling}.parquet"
                embed_run(run, [str(args.folder / f"{source}.jsonl")], out, pooling=pooling)
                tables.append(np.stack(parquet.read_table(out)["vector"].to_numpy()))
            middle = tables[1].mean(0)
            variances, axes = np.linalg.eigh(np.cov(tables[1].T))
            changes = {"": tables, ", centred": [each - middle for each in tables]}
            changes[", whitened"] = [(each - middle) @ axes / np.sqrt(variances + 1e-6) for each in tables]
            for change, (of_queries, of_documents) in changes.items():
                cosines = [normalize(each) @ normalize(of_documents).T for each in (of_queries, of_documents)]
                save(f"{name}, {pooling}{change}", *cosines)
            both = [scaled(ours) + scaled(theirs) for ours, theirs in zip(cosines, lexical, strict=True)]
            save(f"{name}, {pooling}, whitened, with TF-IDF", *both)
    results = {"documents": len(texts), "bytes": sum(len(text.encode()) for text in texts), "runs": RUNS}
    save_results(args.out, " ".join(["python", *sys.argv]), {**results, "recall": figures})
    for name, scores in figures.items():
        print(name, {key: round(value, 3) for key, value in scores.items()})


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("folder", type=Path, help="folder for the documents and runs")
    parser.add_argument("out", type=Path, help="results file")
    main(parser.parse_args())
