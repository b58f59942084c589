"""Trained runs with a damaged file, as cases of malformed input."""

from __future__ import annotations

import itertools
import json
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file

from lagwise.models import load_model
from lagwise.training import resume

Case = tuple[str, Callable[[Path, Path], object]]
Change = Callable[[Path], object]

JSON_DAMAGES = (b"", b"[]", b"null", b"5", b'"text"', b"{", b"[" * 100_000, b"\xff\xfe", b"\0" * 10)


def run_folders() -> Iterator[Case]:
    """A trained run with one of its files damaged."""
    pickled = (b"", b"\0" * 100, b"{}", b"\xff" * 1000, b"PK\3\4" + b"\0" * 50)
    lines = (b"[]\n{}\n", b"5\n{}\n", b'{"loss": 1}\n{}\n', b'{"step": "x"}\n{}\n', b"\xff\n{}\n", b"{\n{}\n")
    recipes = (b"", b"[1]", b"model: 5", b"data: {}\ntraining: {steps: x}", b"\xff\xfe\xfd", b"[" * 5000)
    for files, contents in (
        (("config.json", "trainer_state.json", "run.json"), (*JSON_DAMAGES, b"{}")),
        (("tokenizer.json", "tokenizer_config.json", "evaluation.json", "generation_config.json"), JSON_DAMAGES),
        (("model.safetensors", "checkpoint-2/optimizer.pt", "checkpoint-2/scheduler.pt"), pickled),
        (("checkpoint-2/rng_state.pth",), (b"", b"\0" * 100, b"PK\3\4")),
        (("recipe.yaml",), recipes),
        (("metrics.jsonl",), lines),
    ):
        for file, content in itertools.product(files, contents):
            change: Change = lambda path, content=content: path.write_bytes(content)  # noqa: E731
            yield f"{file} is {content[:20]!r}", _changed(file, change)
    for evaluation in ({"valid": 5}, {"valid": {}, "test": 5}, {"valid": {}, "test": [{}]}, {"test": [5]}):
        yield f"evaluation.json is {evaluation}", _configured("evaluation.json", evaluation)
    for file in ("config.json", "model.safetensors", "tokenizer.json", "recipe.yaml", "run.json"):
        yield f"{file} is missing", _changed(file, lambda path: path.unlink())
    for fields in (
        *({"model_type": value} for value in ("gpt2", None, 5, [], "")),
        *({"hidden_size": value} for value in (0, -1, 10**6, 10**12, 10**30, 16.0, "16", True, None, [])),
        *({"num_hidden_layers": value} for value in (0, 3, 10**6, 10**12, 2.0, None, "x")),
        *({"vocab_size": value} for value in (1, 10**9, 10**12, -5, None, "x")),
        *({"dtype": value} for value in ("int8", "complex64", "nonsense", 5, [], "float8_e4m3fn", {"x": 1})),
        *({"id2label": value} for value in (5, "x", [1], {"a": "b"})),
        *({"num_labels": value} for value in (10**9, 10**12, -1, "x", 1.5)),
        *({"block": value} for value in ([], "x", 5, {}, {"name": "nothing"}, {"name": "prenorm", "dropout": "x"})),
        *({"norm": value} for value in (5, [], "none of these", {"name": "rms", "x": 1}, None)),
        *({"causal": value} for value in ("yes", 1, None)),
        *({"initializer_range": value} for value in (-1, "x", None, 10**400)),
        *({"use_cache": "foo"}, {"tie_word_embeddings": 5}, {"tie_word_embeddings": False}, {"eos_token_id": "x"}),
        *({"max_position_embeddings": value} for value in (0, -1, 1.5, "x")),
        *({"position_embedding": value} for value in ("learned", "nothing", 5)),
    ):
        yield f"config.json has {str(fields)[:60]}", _configured("config.json", fields)
    weights: dict[str, Callable[[dict[str, torch.Tensor]], object]] = {
        "of no tensors": lambda w: w.clear(),
        "without one": lambda w: w.popitem(),
        "with one more": lambda w: w.update(more=torch.zeros(3)),
        "of NaN": lambda w: w.update({k: v * torch.nan for k, v in w.items()}),
        "of one infinity": lambda w: next(iter(w.values())).view(-1)[:1].fill_(torch.inf),
        "of integers": lambda w: w.update({k: v.int() for k, v in w.items()}),
        "of booleans": lambda w: w.update({k: v.bool() for k, v in w.items()}),
        "of complex numbers": lambda w: w.update({k: v.to(torch.complex64) for k, v in w.items()}),
        "of another shape": lambda w: w.update({k: torch.cat([v, v]) for k, v in w.items()}),
        "flattened": lambda w: w.update({k: v.flatten() for k, v in w.items()}),
        "transposed": lambda w: w.update({k: v.t().contiguous() for k, v in w.items() if v.dim() == 2}),
        "of no numbers": lambda w: w.update({k: v[:0] for k, v in w.items()}),
    }
    for name, edit in weights.items():
        yield f"weights {name}", _changed("model.safetensors", lambda path, e=edit: _weights(path, e))
    states: dict[str, Any] = {
        "global_step": (3, "2", None, 2.5, -2, True),
        "log_history": ("x", 5, [1], {}),
        "epoch": ("x", [], True),
        "logging_steps": (0, "x", -1),
        "max_steps": ("x", None),
        "stateful_callbacks": (5, "x", [1]),
        "nonsense": (1,),
    }
    for field, values in states.items():
        for value in values:
            yield f"trainer_state.json has {field}={value!r}", _configured("trainer_state.json", {field: value})
    pickles: dict[str, tuple[Any, ...]] = {
        "optimizer.pt": ([], {}, {"state": 5, "param_groups": 5}, {"state": {}, "param_groups": []}, torch.zeros(3)),
        "scheduler.pt": ([], {}, 5, {"last_epoch": 7}, {"last_epoch": "x"}, torch.zeros(3)),
        "rng_state.pth": ([], {}, 5, {"python": 5, "numpy": 5, "cpu": 5}, {"cpu": torch.zeros(3)}),
    }
    for file, contents in pickles.items():
        for content in contents:
            change = lambda path, content=content: torch.save(content, path)  # noqa: E731
            yield f"{file} holds {str(content)[:40]}", _changed(f"checkpoint-2/{file}", change)


def _use(run: Path) -> None:
    """Everything that reads a run."""
    from lagwise.analysis.report import plot_run

    load_model(run)
    changed = (run / "metrics.jsonl").read_bytes() != (run / "metrics.copy").read_bytes()
    if changed or (run / "evaluation.json").exists():
        plot_run(run)
    (run / "config.json").unlink()  # as if it had not finished
    resume(run, progress=False)


def _changed(file: str, change: Change) -> Callable[[Path, Path], object]:
    def check(folder: Path, run: Path) -> None:
        shutil.copytree(run, folder / "run", dirs_exist_ok=True)
        change(folder / "run" / ("checkpoint-2/" * (file == "trainer_state.json") + file))
        _use(folder / "run")

    return check


def _configured(file: str, fields: dict[str, Any]) -> Callable[[Path, Path], object]:
    """Other values in a file of JSON, which may be absent."""

    def change(path: Path) -> None:
        content = json.loads(path.read_text()) if path.is_file() else {}
        path.write_text(json.dumps({**content, **fields}))

    return _changed(file, change)


def _weights(path: Path, change: Callable[[dict[str, torch.Tensor]], object]) -> None:
    weights = load_file(path)
    change(weights)
    save_file(weights, path, {"format": "pt"})
