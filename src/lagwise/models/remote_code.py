"""The file in every saved folder that lets its model load where lagwise has not been imported."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar

from lagwise._version import __version__
from lagwise.files import follow_umask
from lagwise.models.classes import ModelClass

_MODULE = "modeling_lagwise"
_CODE = '''"""Loads the model in this folder with trust_remote_code=True, where lagwise is installed."""

from lagwise.models import ({names}
)
'''


def auto_map(classes: Mapping[str, ModelClass]) -> dict[str, str]:
    """The entry in config.json: transformers imports ``modeling_lagwise.py`` if trust_remote_code=True."""
    return {each.auto: f"{_MODULE}.{name}" for name, each in classes.items()}


class SavedWithCode:
    """A configuration whose folder has the file that its ``auto_map`` names. If lagwise is not installed, transformers
    asks to "Run `pip install lagwise`"."""

    #: the classes that it describes, itself included
    auto_classes: ClassVar[Mapping[str, ModelClass]]

    @classmethod
    def from_dict(cls, config_dict: dict[str, Any], **kwargs: Any) -> Any:
        config_dict = {k: v for k, v in config_dict.items() if k not in ("auto_map", "lagwise_version")}
        return super().from_dict(config_dict, **kwargs)  # type: ignore[misc]

    def to_diff_dict(self) -> dict[str, Any]:
        written = super().to_diff_dict()  # type: ignore[misc]
        return {**written, "lagwise_version": __version__, "auto_map": auto_map(self.auto_classes)}

    def save_pretrained(self, save_directory: Any, push_to_hub: bool = False, **kwargs: Any) -> None:
        """As in transformers, with an additional file next to config.json that lets the folder load anywhere."""
        folder = Path(save_directory)
        folder.mkdir(parents=True, exist_ok=True)
        names = "".join(f"\n    {name}," for name in sorted(self.auto_classes))
        (folder / f"{_MODULE}.py").write_text(_CODE.format(names=names), encoding="utf-8")
        super().save_pretrained(save_directory, push_to_hub=push_to_hub, **kwargs)  # type: ignore[misc]

    @classmethod
    def register_for_auto_class(cls, auto_class: Any = "AutoConfig") -> None:
        """Does nothing. After loading by `auto_map`, transformers calls it to copy the module of the class into later
        saves, but `save_pretrained` writes its own file there."""


class LoadedSafely:
    """A model of a configuration that is `SavedWithCode`."""

    @classmethod
    def from_pretrained(cls, *args: Any, **kwargs: Any) -> Any:
        """As in transformers, but weights are only read from safetensors files, because a pickle can run code."""
        kwargs.setdefault("use_safetensors", True)
        return super().from_pretrained(*args, **kwargs)  # type: ignore[misc]

    def save_pretrained(self, save_directory: Any, *args: Any, **kwargs: Any) -> None:
        """As in transformers, with weights that all can read who can read config.json."""
        super().save_pretrained(save_directory, *args, **kwargs)  # type: ignore[misc]
        follow_umask(Path(save_directory))

    @classmethod
    def register_for_auto_class(cls, auto_class: Any = "AutoModel") -> None:
        """Does nothing, as `SavedWithCode.register_for_auto_class`."""
