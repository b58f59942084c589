"""Write a run's model to files that other programs run."""

from __future__ import annotations

import hashlib
import shutil
import tempfile
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch
from transformers.utils import IMAGE_PROCESSOR_NAME

from lagwise.files import beside, is_unused, read_json, saved_whole, write_json
from lagwise.models.causal_lm import LagwiseForCausalLM
from lagwise.models.export import EXPORTS, require_format
from lagwise.models.loading import load_model, quiet
from lagwise.tables import known

EXPORT_FILE = "export.json"  # marks a folder that holds exported files


@torch.no_grad()
def export_run(run: Path, out: Path | None = None, *, format: str = "onnx", what: str | None = None) -> dict[str, Any]:
    """Write a model to ``out/WHAT.FORMAT``, by default in ``RUN-export``, with the files of its tokenizer or of its
    image processor beside, and the names of its classes in ``export.json``.

    Args:
        format: ``onnx`` or ``pt2``.
        what: ``forward``, of whole rows, or ``step``, of one token of a language model (see `lagwise.models.export`).
            By default ``step`` of language models, and ``forward`` of others.

    Everything is in float32.

    Returns the content of ``out/export.json``. ValueError if the file's outputs differ from the model's, for the step
    of another model, and as `export_step` and `export_forward`; ImportError for a missing package; FileExistsError if
    ``out`` holds anything but earlier exports, or those of another model. In each case nothing is written.
    """
    if what is not None:
        known(what, EXPORTS, "what")
    require_format(format)
    out, run = out or beside(run, "-export"), run.resolve()
    if not is_unused(out) and not (out / EXPORT_FILE).is_file():
        raise FileExistsError(f"{str(out)!r} exists and does not contain earlier exports; choose another `out`")
    model, tokenizer = load_model(run)
    streams = isinstance(model, LagwiseForCausalLM)
    if what == "step" and not streams:
        raise ValueError(f"what = 'step' is for language models, and {str(run)!r} holds a {type(model).__name__}")
    what = what or ("step" if streams else "forward")
    name = f"{what}.{format}"
    processor = run / IMAGE_PROCESSOR_NAME
    sides = {"sides": list(read_json(processor)["size"].values())} if processor.is_file() else {}
    with tempfile.TemporaryDirectory() as made, quiet():
        figures = EXPORTS[what](model.float(), Path(made, name), **sides)
        files = list(Path(made).iterdir())  # weights of more than 1.5 GB are beside an ONNX file
        figures["bytes"] = sum(file.stat().st_size for file in files)
        meta = _meta(run, out, name, model, tokenizer)
        with saved_whole(out, "the export", last=EXPORT_FILE) as partial:
            for file in files:
                shutil.copyfile(file, partial / file.name)
            if tokenizer is not None:
                tokenizer.save_pretrained(partial)
            if processor.is_file():
                shutil.copyfile(processor, partial / processor.name)
            write_json(partial / EXPORT_FILE, {**meta, name: figures})
    for stale in set(out.glob(f"{name}.*")) - {out / file.name for file in files}:
        stale.unlink()
    return {"out": str(out / name), **figures}


def _meta(run: Path, out: Path, name: str, model: Any, tokenizer: Any) -> dict[str, Any]:
    """What ``out/export.json`` has beside the figures of a file: on earlier files of the same weights, and on tokens.
    FileExistsError for files of other weights."""
    before: dict[str, Any] = {}
    with suppress(FileNotFoundError):
        before = read_json(out / EXPORT_FILE)
    with open(run / "model.safetensors", "rb") as file:
        weights = hashlib.file_digest(file, "sha256").hexdigest()
    others = [key for key, value in before.items() if isinstance(value, dict) and key != name]
    if others and before.get("weights", weights) != weights:
        raise FileExistsError(f"{str(out)!r} has {others[0]} of another model; remove it, or choose another `out`")
    meta = {**before, "weights": weights, "max_length": model.length_limit}
    if tokenizer is not None:
        meta |= {f"{kind}_token_id": getattr(tokenizer, f"{kind}_token_id") for kind in ("eos", "bos", "pad")}
        meta["vocab_size"] = model.config.vocab_size
    if hasattr(model, "classifier"):
        meta["labels"] = [model.config.id2label[i] for i in range(model.num_labels)]
        meta["problem_type"] = model.config.problem_type
    return meta
