"""Write a run's model to files that other programs run."""

from __future__ import annotations

import hashlib
import json
import shutil
import tempfile
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch

from lagwise.files import is_unused, read_json, saved_whole
from lagwise.models.export import EXPORTS, require_format
from lagwise.models.linear.configuration import LagwiseLinearConfig
from lagwise.models.loading import load_language_model, quiet, read_config
from lagwise.runs.export_linear import export_first_answer
from lagwise.tables import known

EXPORT_FILE = "export.json"  # marks a folder that holds exported files


@torch.no_grad()
def export_run(run: Path, out: Path | None = None, *, format: str = "onnx", what: str = "step") -> dict[str, Any]:
    """Write a language model to ``out/WHAT.FORMAT``, by default in ``RUN-export``, with its tokenizer's files beside;
    or a first answer, of which there is no step (`export_first_answer`).

    Args:
        format: ``onnx`` or ``pt2``.
        what: ``forward``, of whole texts, or ``step``, of one token (see `lagwise.models.export`).

    Everything is in float32.

    Returns the content of ``out/export.json``. ValueError if the file's logits differ from the model's, and as
    `export_step`; ImportError for a missing package; FileExistsError if ``out`` holds anything but earlier exports, or
    those of another model. In each case nothing is written.
    """
    export = EXPORTS[known(what, EXPORTS, "what")]
    require_format(format)
    run = run.resolve()
    out = out or run.with_name(run.name + "-export")
    if (run / "config.json").is_file() and isinstance(read_config(run), LagwiseLinearConfig):
        return export_first_answer(run, out, format=format)
    if not is_unused(out) and not (out / EXPORT_FILE).is_file():
        raise FileExistsError(f"{str(out)!r} exists and does not contain earlier exports; choose another `out`")
    model, tokenizer = load_language_model(run)
    name = f"{what}.{format}"
    with tempfile.TemporaryDirectory() as made:
        figures = export(model.float(), Path(made, name))
        files = list(Path(made).iterdir())  # weights of more than 1.5 GB are beside an ONNX file
        figures["bytes"] = sum(file.stat().st_size for file in files)
        known_before: dict[str, Any] = {}
        with suppress(FileNotFoundError):
            known_before = read_json(out / EXPORT_FILE)
        with open(run / "model.safetensors", "rb") as file:
            weights = hashlib.file_digest(file, "sha256").hexdigest()
        others = [key for key, value in known_before.items() if isinstance(value, dict) and key != name]
        if others and known_before.get("weights", weights) != weights:
            raise FileExistsError(f"{str(out)!r} has {others[0]} of another model; remove it, or choose another `out`")
        meta = {
            **known_before,
            "weights": weights,
            "vocab_size": model.config.vocab_size,
            "eos_token_id": tokenizer.eos_token_id,
            "bos_token_id": tokenizer.bos_token_id,
            "max_length": model.length_limit,
            name: figures,
        }
        with quiet(), saved_whole(out, "the export", last=EXPORT_FILE) as partial:
            for file in files:
                shutil.copyfile(file, partial / file.name)
            tokenizer.save_pretrained(partial)
            (partial / EXPORT_FILE).write_text(json.dumps(meta, indent=1) + "\n", encoding="utf-8")
    for stale in set(out.glob(f"{name}.*")) - {out / file.name for file in files}:
        stale.unlink()
    return {"out": str(out / name), **figures}
