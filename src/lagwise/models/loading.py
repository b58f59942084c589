"""Reading a model folder: checked first, so that a damaged one is an error and never a half-initialised model."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open
from transformers import AutoTokenizer, PreTrainedTokenizerBase
from transformers.utils import logging

from lagwise.models.modeling import LagwiseForCausalLM

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


def load_model(folder: str | Path, **changes: Any) -> tuple[LagwiseForCausalLM, PreTrainedTokenizerBase]:
    """The model (in evaluation mode) and tokenizer saved in a run or checkpoint folder.

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
        model, info = LagwiseForCausalLM.from_pretrained(folder, output_loading_info=True, **changes)
    wrong = {kind: sorted(map(str, info[kind])) for kind in ("missing_keys", "unexpected_keys", "mismatched_keys")}
    if any(wrong.values()):
        what = "; ".join(f"{kind.removesuffix('_keys')}: {', '.join(keys[:3])}" for kind, keys in wrong.items() if keys)
        raise ValueError(
            f"the weights in {str(folder)!r} do not fit its config.json ({what}); "
            + ("the changes asked for need other weights" if changes else "another lagwise version?")
        )
    tokenizer: Any = AutoTokenizer.from_pretrained(folder, trust_remote_code=False)
    return model.eval(), tokenizer


def check_weights(folder: Path) -> None:
    """Raise unless the folder's weights are a whole safetensors file. A pickle is named, and not opened."""
    path = folder / _WEIGHTS
    if not path.is_file():
        pickles = [f.name for pattern in ("*.bin", "*.pt", "*.pth", "*.pkl") for f in folder.glob(pattern)]
        found = f"; {pickles[0]} is a pickle, which lagwise never opens: convert it to safetensors" if pickles else ""
        raise FileNotFoundError(f"no {_WEIGHTS} in {str(folder)!r}{found}")
    try:
        with safe_open(path, "pt"):
            pass
    except SafetensorError as error:
        raise ValueError(f"{str(path)!r} is cut short or damaged ({error}); use another checkpoint") from error
