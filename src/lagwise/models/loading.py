"""Reading a model folder: checked first, so that a damaged one is an error and never a half-initialised model."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open
from torch import nn
from transformers import AutoTokenizer, PreTrainedTokenizerBase
from transformers.utils import logging

from lagwise.models.causal_lm import LagwiseForCausalLM
from lagwise.models.classification import LagwiseForSequenceClassification
from lagwise.models.configuration import LagwiseConfig
from lagwise.models.modeling import LagwiseModel, LagwisePreTrainedModel
from lagwise.tables import known

_WEIGHTS = "model.safetensors"


@contextmanager
def quiet() -> Iterator[None]:
    """Without the bar that transformers draws for every file it reads or writes."""
    was_enabled = logging.is_progress_bar_enabled()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        if was_enabled:
            logging.enable_progress_bar()


HEADS: dict[str, type[LagwisePreTrainedModel]] = {
    head.__name__: head for head in (LagwiseForCausalLM, LagwiseForSequenceClassification, LagwiseModel)
}


def load_model(folder: str | Path, **changes: Any) -> tuple[Any, PreTrainedTokenizerBase | None]:
    """The model (in evaluation mode), of the head that it was saved with, and the tokenizer of a run or checkpoint
    folder; None for a tokenizer where the model reads no tokens.

    changes: fields of `LagwiseConfig` to replace, as far as the weights allow: a ``block`` with another engine, or
    with a finer grid of a frequency kernel.

    FileNotFoundError if there is no such folder or no weights in it; ValueError if the weights are cut short, or do
    not fit the configuration (a file from another version). Only JSON and safetensors are read.
    """
    folder = Path(folder).expanduser()
    if not folder.is_dir():
        raise FileNotFoundError(f"there is no folder {str(folder)!r}")
    if not (folder / "config.json").is_file() and (folder / "recipe.yaml").is_file():
        raise FileNotFoundError(
            f"the training of {str(folder)!r} has not finished; go on with 'lagwise train --resume {folder}'"
        )
    if not (folder / "config.json").is_file():
        raise FileNotFoundError(f"{str(folder)!r} is not a model folder: it has no config.json")
    check_weights(folder)
    with quiet():
        config = LagwiseConfig.from_pretrained(folder)
        head = HEADS[known((config.architectures or ["LagwiseForCausalLM"])[0], HEADS, f"architecture in {folder}")]
        model, info = head.from_pretrained(folder, output_loading_info=True, **changes)
    wrong = {kind: sorted(map(str, info[kind])) for kind in ("missing_keys", "unexpected_keys", "mismatched_keys")}
    if any(wrong.values()):
        what = "; ".join(f"{kind.removesuffix('_keys')}: {', '.join(keys[:3])}" for kind, keys in wrong.items() if keys)
        raise ValueError(
            f"the weights in {str(folder)!r} do not fit its config.json ({what}); "
            + ("the changes asked for need other weights" if changes else "another lagwise version?")
        )
    if config.input_name != "tokens":
        return model.eval(), None
    tokenizer: Any = AutoTokenizer.from_pretrained(folder, trust_remote_code=False)
    return model.eval(), tokenizer


def load_language_model(folder: str | Path, **changes: Any) -> tuple[LagwiseForCausalLM, PreTrainedTokenizerBase]:
    """`load_model` for what a language model is needed for. ValueError if the folder holds another head."""
    model, tokenizer = load_model(folder, **changes)
    if not isinstance(model, LagwiseForCausalLM) or tokenizer is None:
        raise ValueError(f"{str(folder)!r} is no language model but a {type(model).__name__}; see 'lagwise predict'")
    return model, tokenizer


def check_weights(folder: Path, model: nn.Module | None = None) -> None:
    """Raise unless the folder's weights are a whole safetensors file, with the keys, shapes and kind of numbers of
    ``model`` if one is given. A pickle is named, and not opened."""
    path = folder / _WEIGHTS
    if not path.is_file():
        pickles = [f.name for pattern in ("*.bin", "*.pt", "*.pth", "*.pkl") for f in folder.glob(pattern)]
        found = f"; {pickles[0]} is a pickle, which lagwise never opens: convert it to safetensors" if pickles else ""
        raise FileNotFoundError(f"no {_WEIGHTS} in {str(folder)!r}{found}")
    try:
        with safe_open(path, "pt") as file:
            slices = {name: file.get_slice(name) for name in file.keys()}  # noqa: SIM118 (it is no mapping)
            found = {name: (list(part.get_shape()), part.get_dtype()) for name, part in slices.items()}
    except SafetensorError as error:
        raise ValueError(f"{str(path)!r} is cut short or damaged ({error}); use another checkpoint") from error
    if model is None:
        return
    own = {name: list(value.shape) for name, value in model.state_dict().items()}
    tied = getattr(model, "_tied_weights_keys", None) or ()  # saved once
    wrong = {
        "missing": own.keys() - found.keys() - set(tied),
        "unexpected": found.keys() - own.keys(),
        "of another shape": {name for name in own.keys() & found.keys() if own[name] != found[name][0]},
        "not floating point": {name for name, (_, dtype) in found.items() if dtype[0] not in "FB" or dtype == "BOOL"},
    }
    if any(wrong.values()):
        what = "; ".join(f"{kind}: {', '.join(sorted(names)[:3])}" for kind, names in wrong.items() if names)
        raise ValueError(f"the weights in {str(folder)!r} do not fit its configuration ({what})")
