"""Classification of sequences, which may also be regressed, of tokens and of images, and the linear map of a first
answer beside the layers."""

from __future__ import annotations

import copy
from itertools import pairwise
from typing import Any, TypeVar

import torch
from torch import Tensor, nn
from transformers.modeling_outputs import ImageClassifierOutput, SequenceClassifierOutput, TokenClassifierOutput
from transformers.utils.generic import can_return_tuple

from lagwise.models.configuration import PAIRS, LagwiseConfig
from lagwise.models.embeddings import filled
from lagwise.models.heads import Head, pool, pool_pairs, pooled_size
from lagwise.models.linear.convolutions import ConvolutionState
from lagwise.models.linear.modeling import LinearModel, build_features, linear_logits
from lagwise.models.modeling import LagwiseModelOutput
from lagwise.ops.operation import exporting, surely
from lagwise.tables import check_integer


class Wide(nn.Module):
    """A linear map of fixed features of a row: the n-grams of a text, how often the random convolutions of a series
    exceed thresholds, how much the patches of an image are like those of others.

    Formula: ``W f + b`` with the features f of a first answer: `Ngrams`, `Convolutions` or `Patches`.

    Shapes: x ``(batch, length)`` of token ids, ``(batch, length * stride, channels)`` of samples or ``(batch, channels,
    height, width)`` of pixels; mask ``(batch, length)``, true at tokens or steps of samples, or None; types, of pairs
    of texts, 0 at the first and 1 at the second; result ``(batch, labels)``.

    Args:
        config: Configuration whose ``wide`` has the name and options of the features.

    Source: a "wide" linear model beside a deep one: Cheng et al. 2016, "Wide & Deep Learning for Recommender Systems";
    there both are trained together. Here `joined` takes W and b from a model that was fitted in closed form.
    """

    def __init__(self, config: LagwiseConfig):
        super().__init__()
        inputs = config.input_options
        self.features = build_features(config.input_name, inputs, config.vocab_size, config.wide or {})
        self.stride: int = inputs.get("stride", 1)
        self.linear = nn.Linear(self.features.size, check_integer("num_labels", config.num_labels))

    def forward(self, x: Tensor, mask: Tensor | None = None, types: Tensor | None = None) -> Tensor:
        if self.stride > 1:  # exclude zeros with which a collator fills the last step
            real: Tensor | None = filled(x, mask, self.stride)
        else:
            real = None if mask is None else mask.bool()
        given = {"mask": real, "types": types if getattr(self.features, "pairs", False) else None}
        with torch.no_grad():
            features = self.features(x, **{name: value for name, value in given.items() if value is not None})
        return linear_logits(features, self.linear)

    def start(self, batch: int) -> ConvolutionState:
        """The state before a stream's first sample."""
        return self.features.start(batch)

    @torch.no_grad()
    def step(self, samples: Tensor, state: ConvolutionState) -> tuple[Tensor, ConvolutionState]:
        """The result after each of the next steps ``(batch, n * stride, channels)``: ``(batch, n, labels)``; and the
        state after them."""
        features, state = self.features.step(samples, state)
        return linear_logits(features[:, self.stride - 1 :: self.stride], self.linear), state


class WideHead(Head):
    """A classifier of pooled hidden states, to which a first answer's map adds its logits if ``config.wide`` is
    given."""

    def __init__(self, config: LagwiseConfig):
        super().__init__(config)
        self.num_labels = check_integer("num_labels", config.num_labels)
        self.dropout = nn.Dropout(config.classifier_dropout)
        sizes, width = [pooled_size(config)], config.classifier_hidden_size
        if width:
            sizes += [width, max(1, width // 2)] if config.pooling in PAIRS else [width]
        activation = nn.Tanh if config.classifier_activation == "tanh" else nn.ReLU
        self.hidden = nn.Sequential(*(each for size in pairwise(sizes) for each in (nn.Linear(*size), activation())))
        self.classifier = nn.Linear(sizes[-1], self.num_labels)
        self.wide = None if config.wide is None else Wide(config)
        self.post_init()

    def answer(self, pooled: Tensor, wide: Tensor | None) -> Tensor:
        """Compute logits of pooled hidden states, to which those of the map are added (of rows, or of `Wide.step`)."""
        logits = self.classifier(self.hidden(self.dropout(pooled).to(self.classifier.weight.dtype)))
        return logits if wide is None else logits + wide

    def classified(
        self, kind: Any, out: LagwiseModelOutput, pooled: Tensor, labels: Tensor | None, x: Any, *others: Any
    ) -> Any:
        """The output for rows: of a class of outputs, from pooled hidden states and, for the map, the inputs x, their
        mask and their types. ValueError for embedded inputs where there is a map."""
        if self.wide is not None and x is None:
            raise ValueError("a wide part reads inputs themselves, not embedded ones")
        logits = self.answer(pooled, None if self.wide is None else self.wide(x, *others))
        if self.config.problem_type == "regression":
            wide = torch.promote_types(logits.dtype, torch.float32)  # numbers far from 0 have few digits in bfloat16
            logits = logits.to(wide) * self.config.label_std + self.config.label_mean
        return self.answered(kind, out, logits, labels, pooled_logits=logits)


class LagwiseForSequenceClassification(WideHead):
    """Classifies a sequence from its pooled hidden states, or regresses, depending on ``config.problem_type``.

    Bidirectional if ``config.causal`` is false, which suits complete texts. Takes the inputs of `LagwiseModel`, and
    labels ``(batch,)`` for the loss; logits are ``(batch, config.num_labels)``. Padding on either side has no effect.
    ValueError for a row of only padding, and for packed rows.

    With ``config.pooling`` ``pair`` or ``signed_pair`` a row holds two texts, with token_type_ids 0 and 1. Each is
    processed as if it were alone, and the classifier gets features of both (`pool_pairs`). ValueError without these
    ids.

    With ``config.wide`` a linear map of the n-grams of a text, or of random convolutions of a series, adds to the
    logits (`Wide`, `WideHead.answer`). ValueError for inputs_embeds.

    >>> config = LagwiseConfig(hidden_size=8, num_hidden_layers=1, num_labels=3, causal=False)
    >>> ids = torch.tensor([list(b"good"), list(b"fine")])
    >>> LagwiseForSequenceClassification(config)(ids, labels=torch.tensor([0, 2])).logits.shape
    torch.Size([2, 3])
    """

    accepts_loss_kwargs = False  # the loss is a mean over the rows of a micro-batch: the Trainer averages these

    def __init__(self, config: LagwiseConfig):
        super().__init__(config)
        self.reads_pairs = config.pooling in PAIRS
        if self.wide is not None and config.input_name == "patches":
            raise ValueError("a wide part of images needs LagwiseForImageClassification")

    def _read_pairs(
        self, ids: Tensor | None, mask: Tensor | None, types: Tensor | None, *inputs: Tensor | None, **others: Any
    ) -> tuple[LagwiseModelOutput, Tensor]:
        """Output of the backbone for the two texts of each row as if each were alone, and their features. An exported
        graph cannot cut rows, so it reads each text with the other one masked."""
        pooling = self.config.pooling
        if types is None:
            raise ValueError(f"pooling {pooling!r} needs token_type_ids, 0 at the first text and 1 at the second")
        texts = types if mask is None else types.masked_fill(mask == 0, -1)
        if exporting():
            out, second = (self.read(ids, (texts == number).long(), types, *inputs) for number in (0, 1))
            hidden = torch.where((texts == 0)[..., None], out.last_hidden_state, second.last_hidden_state)
        else:
            out = self.read(ids, mask, types, *inputs, seq_idx=texts, **others)
            hidden = out.last_hidden_state
        return out, pool_pairs(hidden, pooling, mask=mask, seq_idx=texts)

    @can_return_tuple
    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        token_type_ids: Tensor | None = None,
        inputs_embeds: Tensor | None = None,
        input_values: Tensor | None = None,
        pixel_values: Tensor | None = None,
        position_ids: Tensor | None = None,
        labels: Tensor | None = None,
        **kwargs: Any,
    ) -> SequenceClassifierOutput:
        inputs = input_ids, attention_mask, token_type_ids, inputs_embeds, input_values, pixel_values
        packed = any(kwargs.get(name) is not None for name in ("seq_idx", "cu_seqlens"))
        if self.reads_pairs and not packed:
            out, pooled = self._read_pairs(*inputs, position_ids=position_ids, **kwargs)
        else:
            out = self.read(*inputs, position_ids=position_ids, **kwargs)
            if out.seq_idx is not None:
                raise ValueError("a classifier reads one text or series in each row, got packed rows (seq_idx)")
            pooled = pool(out.last_hidden_state, self.config.pooling, mask=attention_mask)
        read = input_ids if input_values is None else input_values
        return self.classified(SequenceClassifierOutput, out, pooled, labels, read, attention_mask, token_type_ids)


class LagwiseForTokenClassification(Head):
    """Classifies every position of a sequence: tokens of a text, or steps of a series.

    Bidirectional if ``config.causal`` is false; a causal model classifies a series as it arrives. Takes the inputs of
    `LagwiseModel`, and labels ``(batch, length)`` for the loss, -100 at positions that do not count. Logits are
    ``(batch, length, config.num_labels)``.

    >>> config = LagwiseConfig(hidden_size=8, num_hidden_layers=1, num_labels=3)
    >>> LagwiseForTokenClassification(config)(torch.tensor([list(b"good")])).logits.shape
    torch.Size([1, 4, 3])
    """

    def __init__(self, config: LagwiseConfig):
        super().__init__(config)
        self.num_labels = check_integer("num_labels", config.num_labels)
        self.dropout = nn.Dropout(config.classifier_dropout)
        self.classifier = nn.Linear(config.hidden_size, self.num_labels)
        self.post_init()

    @can_return_tuple
    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        token_type_ids: Tensor | None = None,
        inputs_embeds: Tensor | None = None,
        input_values: Tensor | None = None,
        pixel_values: Tensor | None = None,
        seq_idx: Tensor | None = None,
        position_ids: Tensor | None = None,
        labels: Tensor | None = None,
        num_items_in_batch: Tensor | int | None = None,
        **kwargs: Any,
    ) -> TokenClassifierOutput:
        inputs = input_ids, attention_mask, token_type_ids, inputs_embeds, input_values, pixel_values
        out = self.read(*inputs, seq_idx=seq_idx, position_ids=position_ids, **kwargs)
        logits = self.classifier(self.dropout(out.last_hidden_state))
        of_loss = {"logits": logits, "num_items_in_batch": num_items_in_batch}
        return self.answered(TokenClassifierOutput, out, logits, labels, **of_loss)


class LagwiseForImageClassification(WideHead):
    """Classifies an image from the pooled hidden states of its patches (TNN §4.2, table 6).

    Takes pixel_values ``(batch, channels, height, width)`` with sides that are multiples of the patch, and labels
    ``(batch,)`` for the loss; logits are ``(batch, config.num_labels)``. Kernels along the sides extrapolate, so
    images may have other sizes than in training. There is no class token, because it would not fit into a grid:
    pooling is the mean over patches unless ``config.pooling`` says otherwise.

    With ``config.wide`` a linear map of how much an image's patches are like those of others adds to the logits
    (`Wide`, `WideHead.answer`). ValueError for padding.

    ValueError for a configuration whose inputs are not ``patches``, or whose pooling is for pairs of texts.

    >>> inputs = {"name": "patches", "channels": 3, "size": 4}
    >>> config = LagwiseConfig(hidden_size=8, num_hidden_layers=1, num_labels=10, inputs=inputs, causal=False)
    >>> LagwiseForImageClassification(config)(torch.randn(2, 3, 32, 32)).logits.shape
    torch.Size([2, 10])
    """

    main_input_name = "pixel_values"
    accepts_loss_kwargs = False  # the loss is a mean over the rows of a micro-batch: the Trainer averages these

    def __init__(self, config: LagwiseConfig):
        if config.input_name != "patches":
            raise ValueError(f"a classifier of images reads patches, got inputs={config.inputs!r}")
        if config.pooling in PAIRS:
            raise ValueError(f"pooling {config.pooling!r} is for pairs of texts, not for images")
        super().__init__(config)

    @can_return_tuple
    def forward(
        self,
        pixel_values: Tensor | None = None,
        attention_mask: Tensor | None = None,
        inputs_embeds: Tensor | None = None,
        labels: Tensor | None = None,
        **kwargs: Any,
    ) -> ImageClassifierOutput:
        out = self.read(pixel_values=pixel_values, attention_mask=attention_mask, inputs_embeds=inputs_embeds, **kwargs)
        pooled = pool(out.last_hidden_state, self.config.pooling, mask=attention_mask)
        if self.wide is not None and attention_mask is not None and surely(lambda: not attention_mask.all()):
            raise ValueError("a wide part reads whole images, got an attention_mask with padding")
        return self.classified(ImageClassifierOutput, out, pooled, labels, pixel_values)


M = TypeVar("M", bound=WideHead)


@torch.no_grad()
def joined(model: M, first: LinearModel, share: float) -> M:
    """A classifier with the layers of one model and the map of a first answer, on the device and in the dtype of the
    former.

    Formula: ``first(x) + share * model(x)`` of logits; of numbers ``(1 - share) * first(x) + share * model(x)``.

    Both models must be of the same task and data.
    """
    config = copy.deepcopy(model.config)
    config.wide = dict(first.config.features)
    both = type(model)(config).to(device=model.device, dtype=model.dtype)
    both.load_state_dict(model.state_dict(), strict=False)  # the source has no map
    wide: Any = both.wide
    own = dict(wide.features.named_buffers())
    for name, values in first.features.named_buffers():
        # token ids beyond those of the first answer keep zeros
        own[name][tuple(map(slice, values.shape))].copy_(values)
    weight, bias = first.classifier.weight, first.classifier.bias
    if config.problem_type == "regression":  # layers predict standardised numbers
        weight = weight * ((1 - share) / config.label_std)
        bias = (bias - config.label_mean) * ((1 - share) / config.label_std)
    wide.linear.weight.copy_(weight)
    wide.linear.bias.copy_(bias)
    both.classifier.weight.mul_(share)
    both.classifier.bias.mul_(share)
    return both.train(model.training)
