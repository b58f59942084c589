"""Model configuration."""

from __future__ import annotations

from typing import Any, ClassVar

from transformers import AutoConfig, PreTrainedConfig

from lagwise.tables import known, whole_number

POSITION_EMBEDDINGS = ("none", "learned")


class LagwiseConfig(PreTrainedConfig):
    """Configuration of every lagwise model.

    vocab_size: number of token ids.
    hidden_size: channels of the residual stream (TNN table 13: feature dim).
    num_hidden_layers: number of blocks.
    block: spec of the block with its mixers and kernel, by name; ``{"name": "prenorm"}`` is TNN as published. Options
        are those of the constructors (`lagwise.blocks`, `lagwise.mixers`, `lagwise.kernels`).
    causal: whether a token sees only those before it. Language models must; encoders for classification need not.
    norm: norm before the output layer, ``rms`` (no parameters) or ``layer``.
    position_embedding: ``none`` or ``learned`` (a table added to the embeddings, for Transformers).
    max_position_embeddings: longest sequence accepted; None for any. Learned positions need one.
    initializer_range: standard deviation of linear and embedding weights at the start.

    ValueError for a wrong type or an unknown name, at construction rather than at the first forward.
    """

    model_type: ClassVar[str] = "lagwise"
    keys_to_ignore_at_inference: ClassVar[list[str]] = ["past_key_values"]

    vocab_size: int = 258
    hidden_size: int = 256
    num_hidden_layers: int = 6
    block: dict[str, Any] | None = None
    causal: bool = True
    norm: str = "rms"
    position_embedding: str = "none"
    max_position_embeddings: int | None = None
    initializer_range: float = 0.02
    use_cache: bool = True
    tie_word_embeddings: bool = True
    bos_token_id: int | None = None
    eos_token_id: int | None = None
    pad_token_id: int | None = None

    def __post_init__(self, **kwargs: Any) -> None:
        super().__post_init__(**kwargs)
        for name in ("vocab_size", "hidden_size", "num_hidden_layers", "max_position_embeddings"):
            value = getattr(self, name)
            optional = value is None and name == "max_position_embeddings"
            if not optional:
                whole_number(name, value)
        if not isinstance(self.initializer_range, int | float) or self.initializer_range < 0:
            raise ValueError(f"initializer_range must be a number of at least 0, got {self.initializer_range!r}")
        self.block = self.block or {"name": "prenorm"}
        if not isinstance(self.block, dict) or "name" not in self.block:
            raise ValueError(f"block must be a mapping with a 'name', got {self.block!r}")
        if not isinstance(self.causal, bool):
            raise ValueError(f"causal must be true or false, got {self.causal!r}")
        known(self.norm, ("rms", "layer"), "norm")
        known(self.position_embedding, POSITION_EMBEDDINGS, "position embedding")
        if self.position_embedding == "learned" and self.max_position_embeddings is None:
            raise ValueError("position_embedding 'learned' needs max_position_embeddings, the length of its table")


AutoConfig.register(LagwiseConfig.model_type, LagwiseConfig, exist_ok=True)
