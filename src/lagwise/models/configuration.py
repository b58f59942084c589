"""Configurations of models."""

from __future__ import annotations

import dataclasses
import types
import typing
from typing import Annotated, Any, ClassVar

from pydantic import Field
from transformers import AutoConfig, PreTrainedConfig

from lagwise.models.remote_code import CLASSES, LINEAR_CLASSES, SavedWithCode, auto_map
from lagwise.tables import LARGEST_OPTION, Count, Number, Share, Weight, Whole, check_integer, known, shown, typed

POSITION_EMBEDDINGS = ("none", "learned", "sinusoidal", "sinusoidal_2d")
MAX_LAYERS = 10_000
CLASSIFIER_ACTIVATIONS = ("relu", "tanh")
HEAD_TRANSFORMS = ("none", "tanh", "gelu")
PAIRS = ("pair", "signed_pair")
WIDE = {"tokens": "ngrams", "values": "convolutions", "patches": "patches"}  # features of `Wide`, by inputs
SINGLE = ("mean", "first", "last", "ends")  # poolings of single texts
POOLINGS = (*SINGLE, *PAIRS)
_Size = Annotated[Whole, Field(ge=1, le=LARGEST_OPTION)]
_SizeOrNone = Annotated[Whole, Field(ge=0, le=LARGEST_OPTION)]  # 0 for none
_Positive = Annotated[Number, Field(gt=0)]


class LagwiseConfig(SavedWithCode, PreTrainedConfig):
    """Configuration of every lagwise model.

    vocab_size: number of token ids.
    hidden_size: channels of the residual stream (TNN table 13: feature dim).
    num_hidden_layers: number of blocks.
    block: spec of the block with its mixers and kernel, by name; ``{"name": "prenorm"}`` is TNN as published. Options
    are those of the constructors (`lagwise.blocks`, `lagwise.mixers`, `lagwise.kernels`).
    causal: whether a token sees only those before it. Required for language models; optional for encoders.
    inputs: what the model reads, by name and options: ``tokens`` (input_ids), ``values`` (input_values, with
    ``features``) or ``patches`` of images (pixel_values, with ``channels`` and ``size``).
    norm: norm before the output layer, by name or by name and options: ``rms`` (no parameters), ``scale``, ``layer``,
    ``batch``, ``timestep`` (Megalodon's, with ``groups``) or ``none``.
    position_embedding: added to the embeddings: ``none``, ``sinusoidal``, ``learned`` (a table), or, for patches,
    ``sinusoidal_2d`` (of the row and of the column). Sinusoids have amplitude 1, and embeddings begin much smaller
    unless ``scale_embeddings`` is set.
    max_position_embeddings: longest sequence accepted. None for any; the configuration then has no such attribute,
    because other programs compare it with numbers (see `length_limit`). Required for learned positions.
    scale_embeddings: whether embeddings are multiplied by the square root of hidden_size, as in fairseq's models.
    embedding_dropout: dropout rate of the embeddings (positions included) in training.
    stochastic_depth: probability that training skips the last block for a sequence; for earlier blocks in proportion to
    their position (Huang et al. 2016).
    type_vocab_size: number of token_type_ids with an embedding, added to that of the token; with 0 they are accepted
    and ignored.
    ngram_sizes: sizes n of n-grams from 2 to 16, such as [2, 3, 4]: the last n tokens together have an embedding, added
    to that of the token (`NgramEmbedding`); [] for none. Helps models of bytes most.
    ngram_buckets: rows in the table of embeddings of each size, which n-grams share by chance.
    match_sizes: sizes n from 1 to 16, such as [3, 6]: the token that came next when the last n tokens occurred before
    has an embedding, added to that of the token (`MatchEmbedding`); [] for none.
    pooling: how a classifier pools a sequence: the ``mean`` of its real tokens, the ``first``, the ``last``, or by
    ``ends`` the first and the last, concatenated; or, by ``pair`` and ``signed_pair``, the means of two texts, which
    token_type_ids tell apart and which are processed separately, with their product and their difference; the
    difference is without its sign in ``pair``.
    wide: name and options of the features of `Wide`, a linear map that adds to a classifier's logits: ``ngrams`` of
    texts, ``convolutions`` of series, ``patches`` of images, which training fits (``task.wide``). None for none.
    classifier_hidden_size: width of a layer before the classifier's output layer, with ReLU; with pairs a second one of
    half that width follows (Long Range Arena's classifiers). 0 for none.
    classifier_activation: ``relu``, or ``tanh`` as in the classifiers of transformers, of these layers.
    classifier_dropout: dropout rate of the pooled values in training.
    head_transform: layer between hidden states and a language model's output layer: ``none``; ``tanh`` of a linear
    layer (MEGA in transformers); ``gelu`` of one, then layer norm (BERT). By default none, and gelu for a masked
    language model.
    head_bias: whether that output layer has a bias. By default only a masked language model's has.
    sparse_prediction: whether a masked language model that is given labels computes logits only at these.
    prediction_length: steps that `LagwiseForPrediction` forecasts.
    rate: sampling rate of the inputs relative to that of training: 0.5 for samples twice as far apart. Other than 1
    only for mixers and kernels in continuous time (s4d, dss, s5, lru, cema, modal, ema), whose steps it scales, as if
    each sample were held until the next; a saved model is loaded for another rate by ``load_model(folder, rate=0.5)``.
    outputs: options of `LagwiseForSignalRegression` (`SignalOutputs`): ``features`` of every output sample, ``delay``,
    ``window`` of its filters, ``mean`` and ``std``.
    label_mean, label_std: of the labels of a regression; its output is scaled and shifted by them, so that weights
    learn numbers near 1 whatever the labels' unit.
    threshold: for several labels per row (``problem_type="multi_label_classification"``): the probability above which a
    row has a label; None for 0.5.
    initializer_range: standard deviation of linear and embedding weights at the start.
    use_cache: whether a causal model returns its state, to continue from.
    tie_word_embeddings: whether a language model's output layer shares the weights of the embeddings.
    bos_token_id, eos_token_id, pad_token_id: ids of special tokens; training takes them from the tokenizer.

    ValueError for a wrong type or an unknown name, at construction rather than at the first forward pass.

    >>> config = LagwiseConfig(hidden_size=16, num_hidden_layers=2, block={"name": "mega", "chunk": 64})
    >>> config.block["chunk"], config.causal
    (64, True)
    """

    model_type: ClassVar[str] = "lagwise"
    keys_to_ignore_at_inference: ClassVar[list[str]] = ["cache", "past_key_values"]
    auto_map: ClassVar[dict[str, str]] = auto_map(CLASSES)
    auto_classes: ClassVar[dict[str, str]] = CLASSES

    vocab_size: _Size = 258
    hidden_size: _Size = 256
    num_hidden_layers: Annotated[Whole, Field(ge=1, le=MAX_LAYERS)] = 6
    block: dict[str, Any] | None = None
    causal: bool = True
    inputs: str | dict[str, Any] = "tokens"
    norm: str | dict[str, Any] = "rms"
    position_embedding: str = "none"
    max_position_embeddings: Count | None = dataclasses.field(default_factory=lambda: None)
    scale_embeddings: bool = False
    embedding_dropout: Share = 0.0
    stochastic_depth: Share = 0.0
    type_vocab_size: _SizeOrNone = 0
    ngram_sizes: list[int] = dataclasses.field(default_factory=list)
    ngram_buckets: _Size = 16_384
    match_sizes: list[int] = dataclasses.field(default_factory=list)
    pooling: str = "mean"
    wide: dict[str, Any] | None = None
    classifier_hidden_size: _SizeOrNone = 0
    classifier_activation: str = "relu"
    classifier_dropout: Share = 0.0
    head_transform: str | None = None
    head_bias: bool | None = None
    sparse_prediction: bool = False
    prediction_length: int = 96
    rate: _Positive = 1.0
    outputs: dict[str, Any] | None = None
    label_mean: float = 0.0
    label_std: _Positive = 1.0
    threshold: float | None = None
    initializer_range: Weight = 0.02
    use_cache: bool = True
    tie_word_embeddings: bool = True
    bos_token_id: int | None = None
    eos_token_id: int | None = None
    pad_token_id: int | None = None

    def __post_init__(self, **kwargs: Any) -> None:
        if "num_labels" in kwargs:  # transformers creates a name for each
            check_integer("num_labels", typed(int, kwargs["num_labels"], "num_labels", max=LARGEST_OPTION))
        super().__post_init__(**kwargs)
        for name, kind in field_types().items():
            setattr(self, name, typed(kind, getattr(self, name), name))
        if self.max_position_embeddings is None:
            del self.max_position_embeddings
        self.block = {"name": "prenorm"} if self.block is None else self.block
        for name in ("block", "inputs", "norm"):
            value = getattr(self, name)
            if isinstance(value, dict) and not isinstance(value.get("name"), str):
                raise ValueError(f"{name} must be a mapping with a 'name', got {shown(value)}")
        for name in ("bos_token_id", "eos_token_id", "pad_token_id"):
            if (token := getattr(self, name)) is not None and not 0 <= token < self.vocab_size:
                raise ValueError(f"{name} must be in [0, vocab_size = {self.vocab_size}), got {token}")
        known(self.position_embedding, POSITION_EMBEDDINGS, "position embedding")
        known(self.pooling, POOLINGS, "pooling")
        known(self.head_transform or "none", HEAD_TRANSFORMS, "head transform")
        known(self.classifier_activation, CLASSIFIER_ACTIVATIONS, "classifier_activation")
        if self.wide is not None and self.wide.get("name") != WIDE[self.input_name]:
            expected = f"{WIDE[self.input_name]!r} for inputs {self.input_name!r}"
            raise ValueError(f"wide must be the features {expected}, got {shown(self.wide.get('name'))}")
        if self.wide is not None and self.input_options.get("time"):
            raise ValueError("samples with times of their own (inputs.time) go with no wide part, which counts samples")
        if self.position_embedding == "sinusoidal_2d" and self.input_name != "patches":
            raise ValueError(f"position_embedding 'sinusoidal_2d' needs inputs 'patches', got {shown(self.inputs)}")
        for name in ("ngram_sizes", "match_sizes"):
            if getattr(self, name) and self.input_name != "tokens":
                advice = f"leave them out ({name}=[]), or take a recipe that is made for these inputs"
                raise ValueError(f"{name} need inputs 'tokens', got {shown(self.inputs)}; {advice}")
        if self.position_embedding == "learned" and self.length_limit is None:
            raise ValueError("position_embedding 'learned' needs max_position_embeddings, the length of its table")

    @classmethod
    def from_dict(cls, config_dict: dict[str, Any], **kwargs: Any) -> Any:
        if "lagwise_version" not in config_dict:  # written by lagwise 0.1
            config_dict = {**config_dict, "block": _since_0_2(config_dict.get("block"))}
        return super().from_dict(config_dict, **kwargs)

    @property
    def layer_types(self) -> list[str]:
        """``linear_attention`` for every layer, as transformers calls layers with a state. Programs that split
        sequences between processes read it, and refuse models that are not attention throughout."""
        layers = self.num_hidden_layers  # transformers reads this property before __post_init__ checks the number
        return ["linear_attention"] * (layers if isinstance(layers, int) and 0 <= layers <= MAX_LAYERS else 1)

    @property
    def length_limit(self) -> int | None:
        """``max_position_embeddings``, or None if it is not set."""
        return getattr(self, "max_position_embeddings", None)


def field_types() -> dict[str, Any]:
    """The fields that `LagwiseConfig` adds to those of every model, and their types."""
    fields = {field.name for field in dataclasses.fields(LagwiseConfig)}  # class variables are not fields
    own = {name: kind for name, kind in LagwiseConfig.__annotations__.items() if name in fields}
    return typing.get_type_hints(types.SimpleNamespace(__annotations__=own), globals(), include_extras=True)


def _since_0_2(block: Any) -> Any:
    """Convert the block of a lagwise 0.1 configuration, where the default feed-forward layer of MEGA used GELU."""
    if isinstance(block, dict) and block.get("name") == "chain":
        return {**block, "blocks": [_since_0_2(each) for each in block.get("blocks", [])]}
    if isinstance(block, dict) and block.get("name") == "mega" and block.get("channel_mixer") is None:
        return {**block, "channel_mixer": {"name": "mlp", "expansion": 2, "activation": "gelu"}}
    return block


class LagwiseLinearConfig(SavedWithCode, PreTrainedConfig):
    """Configuration of a linear model of fixed features.

    features: the features, by name and options (`lagwise.models.linear.modeling.FEATURES`): ``convolutions`` of series,
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
    auto_classes: ClassVar[dict[str, str]] = LINEAR_CLASSES

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


for _config in (LagwiseConfig, LagwiseLinearConfig):
    AutoConfig.register(_config.model_type, _config, exist_ok=True)
