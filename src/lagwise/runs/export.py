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

from lagwise.files import beside, is_unused, read_json, saved_whole
from lagwise.models.export import EXPORTS, require_format
from lagwise.models.linear.configuration import LagwiseLinearConfig
from lagwise.models.linear.export import export_linear
from lagwise.models.loading import load_language_model, load_model, quiet, read_config
from lagwise.tables import known

EXPORT_FILE = "export.json"  # marks a folder that holds exported files


@torch.no_grad()
def export_run(run: Path, out: Path | None = None, *, format: str = "onnx", what: str = "step") -> dict[str, Any]:
    """Write a language model to ``out/WHAT.FORMAT``, by default in ``RUN-export``, with its tokenizer's files beside;
    or a first answer, of which there is no step, with the names of its classes in ``export.json``.

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
    out, run = out or beside(run, "-export"), run.resolve()
    if not is_unused(out) and not (out / EXPORT_FILE).is_file():
        raise FileExistsError(f"{str(out)!r} exists and does not contain earlier exports; choose another `out`")
    is_linear = (run / "config.json").is_file() and isinstance(read_config(run), LagwiseLinearConfig)
    loaded: Any = (load_model if is_linear else load_language_model)(run)
    model, tokenizer = loaded
    name = f"{'forward' if is_linear else what}.{format}"
    with tempfile.TemporaryDirectory() as made, quiet():
        figures = export_linear(model, Path(made, name)) if is_linear else export(model.float(), Path(made, name))
        files = list(Path(made).iterdir())  # weights of more than 1.5 GB are beside an ONNX file
        figures["bytes"] = sum(file.stat().st_size for file in files)
        if is_linear:
            meta = {"labels": [model.config.id2label[i] for i in range(model.num_labels)]}
        else:
            meta = _language_meta(run, out, name, model, tokenizer)
        with saved_whole(out, "the export", last=EXPORT_FILE) as partial:
            for file in files:
                shutil.copyfile(file, partial / file.name)
            if tokenizer is not None:
                tokenizer.save_pretrained(partial)
            (partial / EXPORT_FILE).write_text(json.dumps({**meta, name: figures}, indent=1) + "\n", encoding="utf-8")
    for stale in set(out.glob(f"{name}.*")) - {out / file.name for file in files}:
        stale.unlink()
    return {"out": str(out / name), **figures}


def _language_meta(run: Path, out: Path, name: str, model: Any, tokenizer: Any) -> dict[str, Any]:
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
    tokens = {f"{kind}_token_id": getattr(tokenizer, f"{kind}_token_id") for kind in ("eos", "bos")}
    sizes = {"vocab_size": model.config.vocab_size, **tokens, "max_length": model.length_limit}
    return {**before, "weights": weights, **sizes}
