"""Long convolutions token by token: by tiles, and with states of fixed shapes."""

from lagwise.ops.streaming.blocks import ONLINE_BLOCK, OnlineTaps
from lagwise.ops.streaming.online import (
    DueState,
    OnlineFollower,
    OnlineState,
    WindowState,
    due_state,
    due_step,
    online_block,
    online_prefill,
)
