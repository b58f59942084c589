"""Checks of the settings of programs that start processes, such as torchrun."""

from __future__ import annotations

import os
import warnings

from lagwise.process import is_first


def check_sharing() -> None:
    """ValueError if `accelerate launch` was told to split sequences or weights between processes."""
    if os.environ.get("ACCELERATE_USE_PARALLELISM_CONFIG", "false").lower() != "true":
        return
    for short, split in (("tp", "weights (tensor"), ("cp", "sequences (context"), ("sp", "sequences (sequence")):
        size = os.environ.get(f"PARALLELISM_CONFIG_{short.upper()}_SIZE", "1")
        if size != "1":
            raise ValueError(
                f"processes share the batch, but are to share {split} parallelism), by {short}_size={size}; launch "
                f"without --parallelism_config_{short}_size"
            )


def check_restarts() -> None:
    """Warn if torchrun may restart processes that would then find the addresses of the processes before them (PyTorch
    2.13, pytorch#135712)."""
    may_restart = os.environ.get("TORCHELASTIC_MAX_RESTARTS", "0") != "0"
    if may_restart and is_first() and os.environ.get("TORCH_DISABLE_SHARE_RDZV_TCP_STORE") != "1":
        warnings.warn(
            "processes that torchrun starts again may wait for those before them without end: start torchrun with "
            "TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1 in its environment",
            stacklevel=2,
        )
