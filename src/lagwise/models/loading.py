"""Loading of model folders. Files are checked first, so that a damaged folder raises an error and never gives a
half-initialised model."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import load_file
from torch import Tensor, nn
from transformers import AutoTokenizer, PreTrainedTokenizerBase
from transformers.tokenization_utils_base import VERY_LARGE_INTEGER
from transformers.utils import logging

from lagwise.files import expanded, one_line, read_json
from lagwise.models.causal_lm import LagwiseForCausalLM
from lagwise.models.configuration import LagwiseConfig, LagwiseLinearConfig
from lagwise.models.memory import check_memory
from lagwise.models.registry import HEADS
from lagwise.models.remote_code import newer
from lagwise.tables import known, shown

_WEIGHTS = "model.safetensors"
_FLOATING = ("F16", "BF16", "F32", "F64")


@contextmanager
def quiet() -> Iterator[None]:
    """Disable the progress bar that transformers draws for every file it reads or writes."""
    was_enabled = logging.is_progress_bar_enabled()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        if was_enabled:
            logging.enable_progress_bar()


def default_device() -> torch.device:
    """Device on which the commands run a model: the current CUDA GPU, if there is one, otherwise the CPU."""
    return torch.device("cuda" if torch.cuda.is_available() else "cpu")


def load_model(
    folder: str | Path, *, device: torch.device | str = "cpu", **changes: Any
) -> tuple[Any, PreTrainedTokenizerBase | None]:
    """Load the model and the tokenizer of a run or checkpoint folder. Only JSON and safetensors files are read.

    Args:
        folder: Folder of a run or checkpoint.
        device: Device for the model.
        changes: Fields of `LagwiseConfig` to replace, as far as the weights allow: a ``block`` with another engine, or
            with a finer grid of a frequency kernel.

    Returns:
        The model, in evaluation mode, with the head that it was saved with, and the tokenizer, or None if the model
        does not read tokens.

    Raises:
        FileNotFoundError: If there is no such folder or no weights in it.
        ValueError: If a file is damaged, or the weights are not finite or do not fit the configuration (a file from
            another version).

    >>> import tempfile
    >>> from lagwise import LagwiseConfig, LagwiseForCausalLM
    >>> from lagwise.data import load_tokenizer
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     LagwiseForCausalLM(LagwiseConfig(hidden_size=8, num_hidden_layers=1)).save_pretrained(folder)
    ...     _ = load_tokenizer("bytes").save_pretrained(folder)
    ...     model, tokenizer = load_model(folder)
    >>> type(model).__name__, model.training, tokenizer("Hi")["input_ids"]
    ('LagwiseForCausalLM', False, [72, 105])
    """
    folder = expanded(folder)
    if folder.is_file():
        raise NotADirectoryError(f"{str(folder)!r} is a file, not the folder of a model; name the folder of a run")
    if not folder.is_dir():
        raise FileNotFoundError(f"there is no folder {str(folder)!r}")
    if not (folder / "config.json").is_file() and (folder / "recipe.yaml").is_file():
        raise FileNotFoundError(f"the training of {str(folder)!r} has not finished; resume it first")
    if not (folder / "config.json").is_file():
        raise FileNotFoundError(f"{str(folder)!r} is not a model folder: it has no config.json")
    config = read_config(folder, **changes)
    with _advised(read_json(folder / "config.json")):
        head = HEADS[known((config.architectures or ["LagwiseForCausalLM"])[0], HEADS, f"architecture in {folder}")]
        if isinstance(config, LagwiseConfig):
            check_memory(head, config, training=False)
        with torch.device("meta"):
            planned = head(config)
        try:
            check_weights(folder, planned)
        except ValueError as error:
            raise ValueError(f"the changes asked for need other weights: {error}" if changes else str(error)) from error
    if (folder / "generation_config.json").is_file():
        read_json(folder / "generation_config.json")  # transformers would ignore a damaged one
    try:
        with quiet():
            model: Any = head.from_pretrained(folder, config=config)
    except Exception as error:  # the folder may hold any other file
        raise ValueError(f"the model in {str(folder)!r} cannot be loaded: {one_line(error)}") from error
    if wrong := [name for name, p in model.named_parameters() if not p.isfinite().all()]:
        raise ValueError(f"the weights in {str(folder)!r} have NaN or infinite values ({wrong[0]})")
    model = model.to(device).eval()
    if config.input_name != "tokens":
        return model, None
    try:
        tokenizer: Any = AutoTokenizer.from_pretrained(folder, trust_remote_code=False)
    except Exception as error:
        raise ValueError(f"the tokenizer in {str(folder)!r} cannot be loaded: {one_line(error)}") from error
    return model, tokenizer


def load_language_model(
    folder: str | Path, *, device: torch.device | str = "cpu"
) -> tuple[LagwiseForCausalLM, PreTrainedTokenizerBase]:
    """`load_model` for language models. ValueError if the folder holds another head."""
    model, tokenizer = load_model(folder, device=device)
    if not isinstance(model, LagwiseForCausalLM) or tokenizer is None:
        raise ValueError(f"{str(folder)!r} is not a language model but a {type(model).__name__}; see 'lagwise predict'")
    return model, tokenizer


def save_tokenizer(tokenizer: PreTrainedTokenizerBase, folder: Path, limit: int | None) -> None:
    """Save a tokenizer with the longest text that its model takes (None: any), where other programs look it up."""
    tokenizer.model_max_length = VERY_LARGE_INTEGER if limit is None else limit
    tokenizer.save_pretrained(folder)


_CONFIGS: dict[Any, Any] = {each.model_type: each for each in (LagwiseConfig, LagwiseLinearConfig)}


def read_config(folder: Path, **changes: Any) -> LagwiseConfig:
    """The configuration in a folder, a `LagwiseLinearConfig` where the folder holds a linear model, with changes to its
    fields. ValueError if it is damaged or of another model, and for changes to a linear model."""
    values = read_json(folder / "config.json")
    kind = values.get("model_type")
    if not isinstance(kind, str) or kind not in _CONFIGS:
        raise ValueError(f"{str(folder)!r} holds a model of type {shown(kind)}, not a lagwise model")
    if changes and _CONFIGS[kind] is LagwiseLinearConfig:
        raise ValueError(f"{str(folder)!r} holds a first answer (a linear model), which has none of {sorted(changes)}")
    if values.get("dtype") not in (None, "float16", "bfloat16", "float32", "float64"):
        raise ValueError(
            f"config.json in {str(folder)!r} has dtype {shown(values['dtype'])}, not a floating-point type"
        )
    for name in changes:
        known(name, _CONFIGS[kind].option_names(), f"option of {_CONFIGS[kind].__name__}")
    try:
        with _advised(values):
            return _CONFIGS[kind].from_dict({**values, **changes})
    except Exception as error:  # transformers raises many types of exceptions for its own fields
        raise ValueError(f"config.json in {str(folder)!r} is not valid: {one_line(error)}") from error


@contextmanager
def _advised(values: Mapping[str, Any]) -> Iterator[None]:
    """Add to a ValueError that a newer lagwise has saved the folder of this config.json, if it has."""
    try:
        yield
    except ValueError as error:
        if not (advice := newer(values)) or advice in str(error):
            raise
        raise ValueError(f"{error}{advice}") from error


def load_model_weights(model: Any, folder: Path) -> None:
    """Load the weights of a folder, checked beforehand, into a model of the same configuration."""
    model.load_state_dict(load_file(folder / _WEIGHTS), strict=False)  # tied weights are saved once
    model.tie_weights()


def filled(model: Any, weights: Mapping[str, Tensor]) -> Any:
    """Load weights into a model on the meta device, and set evaluation mode. ValueError unless the weights have the
    names and shapes of the model's own."""
    own = {name: value.shape for name, value in model.state_dict().items()}
    wrong = sorted(own.keys() ^ weights.keys()) or [name for name in own if own[name] != weights[name].shape]
    if wrong:
        raise ValueError(f"the weights do not fit config.json: {', '.join(wrong[:3])} ({len(wrong)} in all)")
    model.load_state_dict(weights, assign=True)
    model.tie_weights()
    return model.eval()


@torch.inference_mode(False)  # both models share weights, which may be trained
def at_rate(model: Any, rate: float) -> Any:
    """Convert a model of samples to another sampling rate, relative to that of its training: a new model shares its
    weights and scales the steps of its kernels. Returns the model itself for its own rate. ValueError names a part that
    counts samples."""
    if model.config.model_type == LagwiseLinearConfig.model_type:
        raise ValueError(f"rate {rate:g} is not for a first answer (a linear model), which counts samples")
    if rate == model.config.rate:
        return model
    config = type(model.config).from_dict({**model.config.to_dict(), "rate": rate})
    with torch.device("meta"):
        planned = type(model)(config)
    return filled(planned, model.state_dict())


def by_rate(model: Any, hertz: Sequence[int], trained: int) -> list[tuple[Any, list[int]]]:
    """Group sounds by sampling rate in Hz. Returns the model for each rate and the indices of its sounds; ``trained``
    is the rate of training in Hz. ValueError for a rate that the model cannot have."""
    indices: dict[int, list[int]] = {}
    for i, own in enumerate(hertz):
        indices.setdefault(own, []).append(i)
    try:
        return [(model if own == trained else at_rate(model, own / trained), where) for own, where in indices.items()]
    except ValueError as error:
        others = ", ".join(f"{own}" for own in indices if own != trained)
        raise ValueError(
            f"sounds have a sampling rate of {others} Hz, the model was trained at {trained} Hz; resample them to that "
            f"rate ({error})"
        ) from error


def check_weights(folder: Path, model: nn.Module | None = None) -> None:
    """Raise unless the folder's weights are a complete safetensors file, with the keys, shapes and kind of numbers of
    ``model`` if one is given. A pickle is named in the error, but not opened."""
    path = folder / _WEIGHTS
    if not path.is_file():
        pickles = [f.name for pattern in ("*.bin", "*.pt", "*.pth", "*.pkl", "*.ckpt") for f in folder.glob(pattern)]
        advice = f"; {pickles[0]} is a pickle, which lagwise never opens: convert it to safetensors" if pickles else ""
        raise FileNotFoundError(f"no {_WEIGHTS} in {str(folder)!r}{advice}")
    with open(path, "rb"):  # a PermissionError, where safetensors says that there is no such file
        pass
    try:
        with safe_open(path, "pt") as file:
            slices = {name: file.get_slice(name) for name in file.keys()}  # noqa: SIM118 (not a mapping)
            saved = {name: (list(s.get_shape()), s.get_dtype() in _FLOATING) for name, s in slices.items()}
    except SafetensorError as error:
        raise ValueError(f"{str(path)!r} is truncated or damaged ({error}); use another checkpoint") from error
    except RuntimeError as error:  # torch's, which opens the file once more
        raise OSError(f"{str(path)!r} cannot be read: {one_line(error)}") from error
    if model is None:
        return
    own = {name: (list(value.shape), value.is_floating_point()) for name, value in model.state_dict().items()}
    names = dict(model.named_parameters(remove_duplicate=False))
    present = {id(names[name]) for name in saved.keys() & names.keys()}  # tied weights are saved once
    wrong = {
        "missing": {name for name in own.keys() - saved.keys() if id(names.get(name)) not in present},
        "unexpected": saved.keys() - own.keys(),
        "of another shape": {name for name in own.keys() & saved.keys() if own[name][0] != saved[name][0]},
        "of another kind of number": {name for name in own.keys() & saved.keys() if own[name][1] != saved[name][1]},
    }
    if any(wrong.values()):
        differences = "; ".join(f"{kind}: {', '.join(sorted(names)[:3])}" for kind, names in wrong.items() if names)
        raise ValueError(
            f"the weights in {str(folder)!r} do not fit its configuration ({differences}); another lagwise version?"
        )
