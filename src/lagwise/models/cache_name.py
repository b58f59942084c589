"""The name of the cache in transformers, which is ``cache`` since version 5.24 and ``past_key_values`` before.

Models take a cache by both names and return outputs that have both, whichever transformers is installed.
"""

from __future__ import annotations

import dataclasses
from typing import Any

from transformers.modeling_outputs import BaseModelOutputWithPast

NAMES = ("cache", "past_key_values")
#: The name in the installed transformers.
CACHE = next(field.name for field in dataclasses.fields(BaseModelOutputWithPast) if field.name in NAMES)
_OTHER = next(name for name in NAMES if name != CACHE)


class EitherName:
    """Mixin of outputs that have a cache, which gives it by the other name too."""


setattr(EitherName, _OTHER, property(lambda output: getattr(output, CACHE)))


def either(cache: Any, past_key_values: Any) -> Any:
    """Return the argument that is given. ValueError if both are, and differ."""
    if cache is None:
        return past_key_values
    if past_key_values is not None and past_key_values is not cache:
        raise ValueError("cache and past_key_values are two names of one argument; give one of them")
    return cache
