"""Import of model folders that other programs saved."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from safetensors.torch import load_file
from transformers import AutoTokenizer, GenerationConfig

from lagwise.data.options import DataOptions
from lagwise.data.tokenizers import END_OF_TEXT, PAD, UNKNOWN
from lagwise.files import RECIPE_FILE, TOKENIZER, expanded, is_unused, one_line, read_json, saved_whole
from lagwise.models.classification import LagwiseForSequenceClassification
from lagwise.models.loading import check_weights, quiet, save_tokenizer
from lagwise.tables import shown
from lagwise.tasks.labelled import class_fields
from lagwise.training import Recipe
from lagwise_papers.data.dna import DNA
from lagwise_papers.imports.hyena import SPECIAL, from_hyena_dna
from lagwise_papers.imports.letters import read_letters, vocabulary_tokenizer
from lagwise_papers.imports.mega import from_mega

_LONGEST = 1 << 20  # tokens of a row, of a model without a limit
_FAMILIES = {"mega": from_mega, "hyenadna": from_hyena_dna}  # by model_type
_SPECIAL = ("bos_token_id", "eos_token_id", "pad_token_id")


def import_run(folder: Path, out: Path, *, text: Sequence[str] = (), labels: Sequence[str] = ()) -> dict[str, Any]:
    """Write the MEGA or HyenaDNA model that transformers saved in ``folder``, and its tokenizer, as a lagwise model to
    ``out``. Of a vocabulary of letters, ``vocab.txt``, and for HyenaDNA it makes a tokenizer (`vocabulary_tokenizer`).

    A classifier of sequences with a tokenizer is a run, which predicts and is evaluated on other data.

    Args:
        text: the columns that it reads, by default ``text``; two are a pair, and three or more are joined by the
            separator.
        labels: names of its classes by id, where those in config.json are only numbers.

    Returns the name of the head, the number of parameters, and, if there is no tokenizer, the reason as
    ``no_tokenizer``. Only JSON and safetensors are read. FileNotFoundError and ValueError as `load_model` and
    `from_mega` or `from_hyena_dna`, before anything is written; FileExistsError if ``out`` is not empty.
    """
    folder = expanded(folder)
    if not (folder / "config.json").is_file():
        raise FileNotFoundError(f"{str(folder)!r} is not a model folder: it has no config.json")
    if not is_unused(out):
        raise FileExistsError(f"{str(out)!r} is not empty; choose another `out`")
    values = read_json(folder / "config.json")
    if labels:
        values |= _label_fields(values, labels)
    if (kind := values.get("model_type")) not in _FAMILIES:
        raise ValueError(
            f"config.json is of a model of type {shown(kind)}; lagwise imports models of {' and '.join(_FAMILIES)}"
        )
    check_weights(folder)
    model: Any = _FAMILIES[kind](values, load_file(folder / "model.safetensors"))
    if model.can_generate():
        special = {name: getattr(model.config, name) for name in _SPECIAL}
        model.generation_config = GenerationConfig(**special)
    is_run = isinstance(model, LagwiseForSequenceClassification)
    if text and not is_run:
        raise ValueError(f"text names columns of a classifier of sequences; this is a {type(model).__name__}")
    result = {"model": type(model).__name__, "parameters": model.num_parameters()}
    tokenizer: Any = None
    try:
        tokenizer = _tokenizer(folder, kind, values, model.config.vocab_size)
    except Exception as error:  # any file may be in the place of a tokenizer
        result["no_tokenizer"] = one_line(error)
    with quiet(), saved_whole(out, "the model", last="config.json") as partial:
        model.save_pretrained(partial)
        if tokenizer is not None:
            save_tokenizer(tokenizer, partial, model.length_limit)
        if tokenizer is not None and tokenizer.eos_token_id is not None and is_run:
            tokenizer.save_pretrained(partial / TOKENIZER)
            (partial / RECIPE_FILE).write_text(_recipe(folder, model, text).to_yaml(), encoding="utf-8")
    return result


def _tokenizer(folder: Path, kind: str, values: Mapping[str, Any], max_tokens: int) -> Any:
    """Load the tokenizer of a model folder. ValueError if it has more tokens than the model."""
    if kind == "hyenadna":  # its tokenizer is code; the configuration of that names the letters
        file = folder / "tokenizer_config.json"
        letters = (read_json(file) if file.is_file() else {}).get("characters", DNA)
        if len(SPECIAL) + len(letters) != values.get("vocab_size", len(SPECIAL) + len(DNA)):
            raise ValueError(f"HyenaDNA's tokenizer has {len(SPECIAL)} tokens and the letters {letters}, not as many")
        return vocabulary_tokenizer([*SPECIAL, *letters], end="[SEP]", unknown="[UNK]", pad="[PAD]")
    tokens = read_letters(folder)
    if tokens is None:
        return AutoTokenizer.from_pretrained(folder, trust_remote_code=False)
    tokenizer: Any = vocabulary_tokenizer(tokens, end=END_OF_TEXT, unknown=UNKNOWN, pad=PAD)
    if len(tokenizer) > max_tokens:
        raise ValueError(f"vocab.txt makes {len(tokenizer)} tokens, more than the model's {max_tokens}")
    return tokenizer


def _recipe(folder: Path, model: Any, text: Sequence[str]) -> Recipe:
    """Make the recipe with which a classifier predicts like a run."""
    kind = "regression" if model.config.problem_type == "regression" else "classification"
    options = {"name": "sequence_classification", "text": text[0] if len(text) == 1 else list(text) or "text"}
    length = model.length_limit or _LONGEST
    return Recipe(
        description=f"Imported from {folder.name}",
        task={**options, "kind": kind},
        data=DataOptions(source=str(folder), tokenizer=str(folder), length=length),
    )


def _label_fields(values: Mapping[str, Any], labels: Sequence[str]) -> dict[str, Any]:
    """Return the fields of config.json that name the classes."""
    count = len(values.get("id2label") or (0, 1))
    if len(labels) != count or len(set(labels)) < count:
        raise ValueError(f"labels must be {count} different names, one for each class of the model, got {list(labels)}")
    return {name: value for name, value in class_fields(labels).items() if name != "num_labels"}
