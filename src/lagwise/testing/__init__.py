"""Checks for other packages: of mixers, against their contract, and of causal language models of transformers."""

from typing import TYPE_CHECKING

from lagwise._lazy import lazy_package

if TYPE_CHECKING:
    from lagwise.testing.mixers import (
        Factory,
        check_autocast,
        check_causality,
        check_fixed_shapes,
        check_gradients,
        check_joined_states,
        check_mixer,
        check_old_states,
        check_packing,
        check_padding,
        check_padding_anywhere,
        check_shapes,
        check_shards,
        check_streaming,
        check_times,
        check_weights,
        shard_difference,
        split_layouts,
        streamed,
        takes_times,
    )
    from lagwise.testing.models import Finding, Report, check_model

__all__, __getattr__, __dir__ = lazy_package(__name__)
