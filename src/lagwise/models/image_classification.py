"""Classification of images."""

from __future__ import annotations

from typing import Any

from torch import Tensor
from transformers.modeling_outputs import ImageClassifierOutput
from transformers.utils.generic import can_return_tuple

from lagwise.models.configuration import PAIRS, LagwiseConfig
from lagwise.models.pooling import pool
from lagwise.models.wide import WideHead
from lagwise.ops.operation import traced


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
        if self.wide is not None and attention_mask is not None and not traced() and not attention_mask.all():
            raise ValueError("a wide part reads whole images, got an attention_mask with padding")
        logits = self.answer(pooled, self.beside(pixel_values, pooled))
        loss = None
        if labels is not None:
            loss = self.loss_function(labels=labels, pooled_logits=logits, config=self.config)
        return ImageClassifierOutput(loss=loss, logits=logits, hidden_states=out.hidden_states)
