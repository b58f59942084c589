"""Configuration of linear models."""

from __future__ import annotations

import dataclasses
from typing import Any, ClassVar

from transformers import AutoConfig, PreTrainedConfig

from lagwise.models.classes import LINEAR_CLASSES, ModelClass
from lagwise.models.remote_code import SavedWithCode, auto_map
from lagwise.tables import shown


class LagwiseLinearConfig(SavedWithCode, PreTrainedConfig):
    """Configuration of a linear model of fixed features.

    features: the features, by name and options (`lagwise.models.linear.features.FEATURES`): ``convolutions`` of series,
    ``patches`` of images, ``ngrams`` of texts.
    inputs: what the model reads, by name and options as in `LagwiseConfig`: ``tokens``, ``values`` (with ``features``,
    and perhaps ``mean``, ``std`` and ``gaps``) or ``patches`` (with ``channels``, and ``image``, the height and width
    in training).
    vocab_size: number of token ids.
    threshold: for several labels per row, as in `LagwiseConfig`.
    pad_token_id, bos_token_id, eos_token_id: ids of special tokens.

    ValueError for features or inputs without a name.
    """

    model_type: ClassVar[str] = "lagwise-linear"
    auto_map: ClassVar[dict[str, str]] = auto_map(LINEAR_CLASSES)
    auto_classes: ClassVar[dict[str, ModelClass]] = LINEAR_CLASSES

    #: True, because the features of a stream are known after each sample, as with a causal model
    causal: ClassVar[bool] = True
    #: maximum length of inputs: none
    length_limit: ClassVar[int | None] = None

    features: dict[str, Any] = dataclasses.field(default_factory=lambda: {"name": "convolutions"})
    inputs: dict[str, Any] = dataclasses.field(default_factory=lambda: {"name": "values", "features": 1})
    vocab_size: int = 258
    threshold: float | None = None
    pad_token_id: int | None = None
    bos_token_id: int | None = None
    eos_token_id: int | None = None

    def __post_init__(self, **kwargs: Any) -> None:
        super().__post_init__(**kwargs)
        for name in ("features", "inputs"):
            value = getattr(self, name)
            if not isinstance(value, dict) or not isinstance(value.get("name"), str):
                raise ValueError(f"{name} must be a mapping with a 'name', got {shown(value)}")

    @property
    def input_name(self) -> str:
        """Name of `inputs`."""
        return self.inputs["name"]

    @property
    def takes_gaps(self) -> bool:
        """Whether samples of its series may be missing (NaN)."""
        return self.inputs.get("gaps", False)


AutoConfig.register(LagwiseLinearConfig.model_type, LagwiseLinearConfig, exist_ok=True)
