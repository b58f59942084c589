"""Folders of models that other programs saved, as lagwise folders."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from safetensors.torch import load_file
from transformers import AutoTokenizer, GenerationConfig

from lagwise.files import expanded, is_unused, one_line, read_json, saved_whole
from lagwise.models.loading import check_weights, quiet, save_tokenizer
from lagwise.models.mega_import import from_mega

_SPECIAL = ("bos_token_id", "eos_token_id", "pad_token_id")


def import_run(folder: Path, out: Path) -> dict[str, Any]:
    """Write the MEGA model that transformers saved in ``folder``, and its tokenizer, as a lagwise model to ``out``.

    Returns the name of the head, the number of parameters, and, if there is no tokenizer, the reason as
    ``no_tokenizer``. Only JSON and safetensors are read. FileNotFoundError and ValueError as `load_model` and
    `from_mega`, before anything is written; FileExistsError if ``out`` is not empty.
    """
    folder = expanded(folder)
    if not (folder / "config.json").is_file():
        raise FileNotFoundError(f"{str(folder)!r} is not a model folder: it has no config.json")
    if not is_unused(out):
        raise FileExistsError(f"{str(out)!r} is not empty; choose another --out")
    values = read_json(folder / "config.json")
    check_weights(folder)
    model: Any = from_mega(values, load_file(folder / "model.safetensors"))
    if model.can_generate():
        special = {name: getattr(model.config, name) for name in _SPECIAL}
        model.generation_config = GenerationConfig(**special)
    result = {"model": type(model).__name__, "parameters": model.num_parameters()}
    tokenizer: Any = None
    try:
        tokenizer = AutoTokenizer.from_pretrained(folder, trust_remote_code=False)
    except Exception as error:  # of whatever the folder holds in its place
        result["no_tokenizer"] = one_line(error)
    with quiet(), saved_whole(out, "the model", last="config.json") as partial:
        model.save_pretrained(partial)
        if tokenizer is not None:
            save_tokenizer(tokenizer, partial, model.length_limit)
    return result
