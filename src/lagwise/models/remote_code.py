"""All model classes, and what every saved folder has so that its model loads where lagwise has not been imported."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar

from packaging.version import InvalidVersion, Version
from transformers import GenerationConfig

from lagwise._version import __version__
from lagwise.files import follow_umask
from lagwise.tables import known

_MODULE = "modeling_lagwise"
# Further names that transformers accepts for a configuration, or writes into config.json.
_OF_TRANSFORMERS = ("attn_implementation", "custom_pipelines", "dtype", "experts_implementation", "model_type")
_OF_TRANSFORMERS += ("name_or_path", "num_labels", "output_attentions", "per_layer_config", "quantization_config")
_OF_TRANSFORMERS += ("torch_dtype", "transformers_version")
_CODE = '''"""Loads the model in this folder with trust_remote_code=True, where lagwise is installed."""

from lagwise.models import ({names}
)
'''
_OF_FILES = ("auto_map", "lagwise_version")


#: The Auto class of transformers that loads each class that `LagwiseConfig` describes.
CLASSES = {
    "LagwiseConfig": "AutoConfig",
    "LagwiseModel": "AutoModel",
    "LagwiseForCausalLM": "AutoModelForCausalLM",
    "LagwiseForImageClassification": "AutoModelForImageClassification",
    "LagwiseForMaskedLM": "AutoModelForMaskedLM",
    "LagwiseForPrediction": "AutoModelForTimeSeriesPrediction",
    "LagwiseForSequenceClassification": "AutoModelForSequenceClassification",
    "LagwiseForSignalRegression": "AutoModelForTextToWaveform",
    "LagwiseForTokenClassification": "AutoModelForTokenClassification",
}
#: The same for the linear models that `LagwiseLinearConfig` describes.
LINEAR_CLASSES = {
    "LagwiseLinearConfig": "AutoConfig",
    "LagwiseLinearForImageClassification": "AutoModelForImageClassification",
    "LagwiseLinearForSequenceClassification": "AutoModelForSequenceClassification",
}


def newer(values: Mapping[str, Any]) -> str:
    """Advice for a config.json of a newer lagwise, for the end of a message; empty if it is not newer."""
    saved = values.get("lagwise_version")
    try:
        later = isinstance(saved, str) and Version(saved) > Version(__version__)
    except InvalidVersion:
        later = False
    return (
        f"; it was saved by lagwise {saved}, which is newer than this {__version__}: upgrade lagwise" if later else ""
    )


def auto_map(classes: Mapping[str, str]) -> dict[str, str]:
    """The entry in config.json: transformers imports ``modeling_lagwise.py`` if trust_remote_code=True."""
    return {auto: f"{_MODULE}.{name}" for name, auto in classes.items()}


class SavedWithCode:
    """A configuration whose folder has the file that its ``auto_map`` names. If lagwise is not installed, transformers
    asks to "Run `pip install lagwise`"."""

    #: classes that the configuration describes, its own included
    auto_classes: ClassVar[Mapping[str, str]]
    inputs: Any

    def __post_init__(self, **kwargs: Any) -> None:
        names = self.option_names()
        for name in kwargs:
            if not name.startswith("_"):
                known(name, names, f"option of {type(self).__name__}")
        super().__post_init__(**kwargs)  # type: ignore[misc]

    @property
    def input_name(self) -> str:
        """Name of ``inputs``, the field with what the model reads, in either form."""
        return self.inputs if isinstance(self.inputs, str) else self.inputs["name"]

    @property
    def input_options(self) -> Mapping[str, Any]:
        """Return the options of ``inputs``; its name may be among them."""
        return {} if isinstance(self.inputs, str) else self.inputs

    @property
    def takes_gaps(self) -> bool:
        """Whether samples of its series may be missing (NaN)."""
        return self.input_options.get("gaps", False)

    @classmethod
    def option_names(cls) -> list[str]:
        """Names of the constructor's arguments: own fields, then those that transformers accepts for every model."""
        fields: Any = cls
        generation = GenerationConfig._get_default_generation_params()
        every = [*(field.name for field in dataclasses.fields(fields)), *_OF_TRANSFORMERS, *_OF_FILES, *generation]
        return sorted(every, key=lambda name: name not in cls.__annotations__)

    @classmethod
    def from_dict(cls, config_dict: dict[str, Any], **kwargs: Any) -> Any:
        """Create a configuration as in transformers. Names that other programs added become attributes; ValueError for
        unknown names that a newer lagwise saved."""
        names = cls.option_names()
        others = {k: v for k, v in config_dict.items() if k not in names and not k.startswith("_")}
        if others and (advice := newer(config_dict)):
            raise ValueError(f"unknown option {next(iter(others))!r}{advice}")
        config_dict = {k: v for k, v in config_dict.items() if k not in others and k not in _OF_FILES}
        loaded = super().from_dict(config_dict, **kwargs)  # type: ignore[misc]
        config = loaded[0] if isinstance(loaded, tuple) else loaded
        for name, value in others.items():
            setattr(config, name, value)
        return loaded

    def to_diff_dict(self) -> dict[str, Any]:
        written = super().to_diff_dict()  # type: ignore[misc]
        return {**written, "lagwise_version": __version__, "auto_map": auto_map(self.auto_classes)}

    def save_pretrained(self, save_directory: Any, push_to_hub: bool = False, **kwargs: Any) -> None:
        """Save as in transformers, and write a file next to config.json that lets the folder load anywhere."""
        folder = Path(save_directory)
        folder.mkdir(parents=True, exist_ok=True)
        names = "".join(f"\n    {name}," for name in sorted(self.auto_classes))
        (folder / f"{_MODULE}.py").write_text(_CODE.format(names=names), encoding="utf-8")
        super().save_pretrained(save_directory, push_to_hub=push_to_hub, **kwargs)  # type: ignore[misc]

    @classmethod
    def register_for_auto_class(cls, auto_class: Any = "AutoConfig") -> None:
        """No-op: transformers would copy the module of the class into later saves, but `save_pretrained` writes its own
        file there."""


class LoadedSafely:
    """A model of a configuration that is `SavedWithCode`."""

    @classmethod
    def from_pretrained(cls, *args: Any, **kwargs: Any) -> Any:
        """Load as in transformers, but only from safetensors files, because a pickle can run code."""
        kwargs.setdefault("use_safetensors", True)
        return super().from_pretrained(*args, **kwargs)  # type: ignore[misc]

    def save_pretrained(self, save_directory: Any, *args: Any, **kwargs: Any) -> None:
        """Save as in transformers; whoever can read config.json can read the weights."""
        super().save_pretrained(save_directory, *args, **kwargs)  # type: ignore[misc]
        follow_umask(Path(save_directory))

    @classmethod
    def register_for_auto_class(cls, auto_class: Any = "AutoModel") -> None:
        """No-op: the code is always saved (see `SavedWithCode.register_for_auto_class`)."""
