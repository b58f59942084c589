"""What all heads share: a backbone that reads the inputs, and an output layer on its hidden states."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Any, ClassVar

from transformers.utils.generic import can_return_tuple

from lagwise.models.configuration import LagwiseConfig
from lagwise.models.modeling import LagwiseModel, LagwisePreTrainedModel

_BACKBONE = inspect.signature(LagwiseModel.forward).parameters
_INPUTS = [parameter for name, parameter in _BACKBONE.items() if name not in ("self", "kwargs")]


class Head(LagwisePreTrainedModel):
    """A backbone and an output layer. Subclasses add the layer, and a `forward` made by `head_forward`."""

    #: whether outputs carry a `StreamingCache` to go on from
    streams: ClassVar[bool] = False

    def __init__(self, config: LagwiseConfig):
        super().__init__(config)
        self.model = LagwiseModel(config)

    def read(self, inputs: dict[str, Any]) -> dict[str, Any]:
        """The inputs as the backbone gets them."""
        return inputs

    def shortcut(self, inputs: dict[str, Any]) -> Any:
        """The output for these arguments of forward, if it can be had without the backbone; else None."""
        return None

    @property
    def length_limit(self) -> int | None:
        """As `LagwiseModel.length_limit`."""
        return self.model.length_limit


def head_forward(method: Callable[..., Any]) -> Callable[..., Any]:
    """The forward of a head, which takes the arguments of `LagwiseModel` and its own.

    ``method(self, out, *, ...)`` gets the output of the backbone and the arguments that it names itself, such as
    labels; one with the name of an input is given to both. The signature lists all of them, because transformers reads
    there which columns of a data set and which arguments of `generate` a model takes.
    """
    own = [p for name, p in inspect.signature(method).parameters.items() if name not in ("self", "out")]
    own_names = {p.name for p in own}
    input_names = [p.name for p in _INPUTS]

    @can_return_tuple
    @functools.wraps(method)
    def forward(self: Head, *args: Any, **kwargs: Any) -> Any:
        kwargs.update(zip(input_names, args, strict=False))
        found = self.shortcut(kwargs)
        if found is not None:
            return found
        given = {name: value for name, value in kwargs.items() if name in own_names}
        inputs = {name: value for name, value in kwargs.items() if name not in own_names or name in input_names}
        if not self.streams or (inputs.get("use_cache") is None and given.get("labels") is not None):
            inputs["use_cache"] = False  # a loss is taken over whole sequences
        return method(self, self.model(**self.read(inputs), return_dict=True), **given)

    parameters = [inspect.Parameter("self", inspect.Parameter.POSITIONAL_OR_KEYWORD), *_INPUTS]
    parameters += [p.replace(kind=inspect.Parameter.KEYWORD_ONLY) for p in own if p.name not in input_names]
    parameters += [inspect.Parameter("kwargs", inspect.Parameter.VAR_KEYWORD)]
    forward.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    return forward
