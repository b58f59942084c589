"""Write a run's first answer to a file that other programs run."""

from __future__ import annotations

import json
import shutil
import tempfile
from pathlib import Path
from typing import Any

import torch

from lagwise.files import is_unused, saved_whole
from lagwise.models.export import require_format
from lagwise.models.linear.export import export_linear
from lagwise.models.loading import load_model, quiet

EXPORT_FILE = "export.json"


@torch.no_grad()
def export_first_answer(run: Path, out: Path, *, format: str) -> dict[str, Any]:
    """Write a linear model to ``out/forward.FORMAT``, with its tokenizer if it has one, and ``export.json``, which has
    the names of the classes too. Returns and errors as `lagwise.runs.export_run`."""
    require_format(format)
    if not is_unused(out) and not (out / EXPORT_FILE).is_file():
        raise FileExistsError(f"{str(out)!r} exists and does not contain earlier exports; choose another `out`")
    model, tokenizer = load_model(run)
    name = f"forward.{format}"
    with tempfile.TemporaryDirectory() as made, quiet():
        figures = export_linear(model, Path(made, name))
        figures["bytes"] = sum(file.stat().st_size for file in Path(made).iterdir())
        labels = [model.config.id2label[i] for i in range(model.num_labels)]
        with saved_whole(out, "the export", last=EXPORT_FILE) as partial:
            for file in Path(made).iterdir():
                shutil.copyfile(file, partial / file.name)
            if tokenizer is not None:
                tokenizer.save_pretrained(partial)
            (partial / EXPORT_FILE).write_text(
                json.dumps({"labels": labels, name: figures}, indent=1) + "\n", encoding="utf-8"
            )
    return {"out": str(out / name), **figures}
