"""Long convolutions token by token: by tiles, and by ring buffers of fixed shape."""

from lagwise.ops.streaming.blocks import ONLINE_BLOCK, OnlineTaps
from lagwise.ops.streaming.online import OnlineState, online_block, online_follow, online_prefill
from lagwise.ops.streaming.ring import (
    ring_convolve,
    ring_extend,
    ring_lags,
    ring_of,
    ring_product,
    ring_read,
    ring_tokens,
    ring_write,
)

__all__ = [
    "ONLINE_BLOCK",
    "OnlineState",
    "OnlineTaps",
    "online_block",
    "online_follow",
    "online_prefill",
    "ring_convolve",
    "ring_extend",
    "ring_lags",
    "ring_of",
    "ring_product",
    "ring_read",
    "ring_tokens",
    "ring_write",
]
