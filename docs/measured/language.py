"""Sections about language models and recall."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tables import has_results, measured_table, results

_BEST, _SEARCH, _VOCABULARIES = "best-lm-cpu.json", "best-lm-search-cpu.json", "vocabularies-cpu.json"


def _scores(test: Sequence[dict[str, Any]], lengths: Sequence[int]) -> list[str]:
    found = {score["length"]: f"{score['bits_per_byte']:.3f}" for score in test}
    return [found.get(length, "over its limit") for length in lengths]


def novels() -> str:
    one, two = "novels-tnn-transformer.json", "novels-tnn-fd-ski.json"
    lengths = (512, 2048, 14336)
    first = [
        [
            name,
            f"{run['parameters'] / 1e6:.2f}M",
            f"{run['steps_per_second']:.2f}",
            *_scores(run["evaluation"]["test"], lengths),
        ]
        for name, run in results(one)["results"].items()
    ]
    second = [
        [
            name,
            f"{run['parameters'] / 1e6:.2f}M",
            f"{run['evaluation']['valid']['bits_per_byte']:.3f}",
            *_scores(run["evaluation"]["test"], lengths),
        ]
        for name, run in results(two)["results"].items()
    ]
    return f"""## Language models on 100 novels

Bytes, 1,750 steps of 4,096 tokens at length 512, models of like size, one seed; bits per byte on the same 229,376 test
bytes at several lengths. On all of them at once gzip needs 3.00 and xz 2.63.

{measured_table(one, ["model", "parameters", "steps/s", *lengths], first)}

![Validation curves and extrapolation](../benchmarks/results/novels-tnn-transformer.png)

The same data and steps, and the same one seed, with later code:

{measured_table(two, ["model", "parameters", "validation", *lengths], second)}

A finer grid than FD-TNN was trained with changes less than 2e-5 bits per byte for 1,024 to 4,096 frequencies. Running
the trained TNN with `engine=ski` costs 5e-6 (`novels-changed-models.json`)."""


def enwik8() -> str:
    name = "enwik8-cpu.json"
    rows = [
        [
            model,
            f"{run['parameters'] / 1e6:.2f}M",
            f"{run['evaluation']['valid']['bits_per_byte']:.3f}",
            *_scores(run["evaluation"]["test"], (512, 2048, 8192)),
        ]
        for model, run in results(name)["results"].items()
    ]
    return f"""## Language models on enwik8

Bytes, the first 3.9 million of enwik8 to train on, 800 steps of 8 × 512, one seed; bits per byte on 127,197
test bytes.
TCNCA-wide sees 1,365 tokens, more than it was trained on, so its last taps stay random; TCNCA sees 485.

{measured_table(name, ["model", "parameters", "validation", 512, 2048, 8192], rows)}"""


_COLUMNS = ["text", "minutes", "model", "rate", "parameters", "steps", "validation", "test at 512", 2048, 14336]


def best() -> str:
    return f"""## The best language model per minute

Bits per byte after equal minutes of one thread, in batches of 4 × 512 bytes, one seed each. conv-fd-local+4@3.6 is the
recipe best-lm without `input_residual`, `block_embeddings` and a linear schedule, which came later: short convolutions,
FD-TNN's kernel in TNN's gated unit, and attention in chunks of 128, with embeddings of n-grams of 2 to 4 bytes (many
parameters, of which a step reads few) and of what came next when the last 3 and 6 bytes occurred before. Its lead over
fd-tnn-lm is smallest on short pieces of novels, and grows with the length of the text, because a longer text repeats
more.

{measured_table(_BEST, _COLUMNS, _per_minute(_BEST))}

The recipe best-lm on bytes, or on a BPE of the text's own with n-grams and matches of its tokens, one seed each, in
minutes of the processor; bits per byte of all bytes of the test text at 512 tokens, and at about 14,336 bytes. With
`data.tokenizer=auto` the recipe reads a BPE where the text has 8 MB or more: of 1,024 tokens if the training would read
1.6 million bytes or more, of 4,096 from five million on. The enwik8 here has 3.9 MB, which a BPE reads three times in
ten minutes; small has 300 KB of novels. *before*: without `block_embeddings`, and with a cosine schedule.

{_words()}"""


def _words() -> str:
    rows = []
    for key, run in results(_VOCABULARIES)["results"].items():
        text, minutes, size, *changes = key.split("/")
        scores = [f"{score['bits_per_byte']:.3f}" for score in run["scores"]]
        rows.append(((text, int(minutes), int(size), changes != ["blocks"]), [f"{run['steps']:,}", *scores]))
    table = [
        [text, str(minutes), f"{size:,}" if size else "bytes", "before" if before else "now", *cells]
        for (text, minutes, size, before), cells in sorted(rows)
    ]
    columns = ["text", "minutes", "vocabulary", "recipe", "steps", "at 512 tokens", "at 14,336 bytes"]
    return measured_table(_VOCABULARIES, columns, table)


def search() -> str:
    return f"""## The search for the best language model per minute

One seed each. In the names, fd is FD-TNN's kernel in TNN's gated unit, local attention in chunks of 128, conv a short
convolution, and lru a recurrence; their layers alternate. deep has more layers, wide a larger width. +N adds embeddings
of n-grams of 2 to N bytes (`model.ngram_sizes`). N-grams are ahead in short trainings; after 20 minutes little is left
of their lead on enwik8 and on the standard library, whose bytes are read twice. Models that end in -muon are trained by
Muon (`training.optimizer=muon`): of a short training it needs 0.6 times the steps, but here a step takes a third
longer, and after 20 minutes little or nothing is left of its lead. Larger batches hide that cost. Attention with ALiBi
is an earlier and slower version.

{measured_table(_SEARCH, _COLUMNS, _per_minute(_SEARCH))}"""


def _per_minute(name: str) -> list[list[str]]:
    """Rows of a results file of `benchmarks/best_lm.py`, longer trainings first."""
    runs: dict[tuple[str, float], list[tuple[str, dict[str, Any]]]] = {}
    for key, run in results(name)["results"].items():
        text, minutes, model, rate = key.split("/")
        runs.setdefault((text, float(minutes)), []).append((f"{model} | {rate}", run))
    rows = []
    for text, minutes in sorted(runs, key=lambda each: (-each[1], each[0])):
        for model, run in sorted(runs[text, minutes], key=lambda each: each[1]["scores"]["valid"]["bits_per_byte"]):
            scores = [
                f"{run['scores']['valid']['bits_per_byte']:.3f}",
                *_scores(run["scores"]["test"], (512, 2048, 14336)),
            ]
            size = f"{run['machine']['parameters'] / 1e6:.1f}M"
            rows.append([text, f"{minutes:g}", model, size, f"{run['steps']:,}", *scores])
    return rows


def recall() -> str:
    name = "recall-cpu.json"
    found = results(name)["results"]
    rows = [[model, *(f"{100 * found[case][model]['accuracy']:.1f}" for case in found)] for model in found["64/10"]]
    columns = ["model", *("length {}, {} tokens".format(*case.split("/")) for case in found)]
    return f"""## Associative recall

Correct answers in per cent after one small budget for all, one seed: 600 steps of 32 sequences at length 64, 250 of 4
at 1,024. Guessing a value reaches 20 with 10 tokens and 10 with 20.

{measured_table(name, columns, rows)}"""


def queries() -> str:
    name = "query-recall-cpu.json"
    if not has_results(name):
        return ""
    found = results(name)["results"]
    sizes = [(each["length"], each["pairs"]) for each in next(iter(found.values()))["test"]]
    rows = [
        [model, f"{run['steps']:,}", *(f"{100 * each['accuracy']:.1f}" for each in run["test"])]
        for model, run in found.items()
    ]
    return f"""## Multi-query associative recall

Queries answered correctly in per cent (MQAR, by Zoology's rules), of 128 tokens in sequences of 64, after the same CPU
time for all, three quarters of a minute, one seed: 64 channels, three layers (best-lm: four), attention in chunks of 16
except in the Transformer, which sees the whole sequence. Guessing a value reaches 1.6. Learning rates are not tuned and
no model is trained to its end.

{measured_table(name, ["model", "steps", *(f"{n}, {pairs} pairs" for n, pairs in sizes)], rows)}"""
