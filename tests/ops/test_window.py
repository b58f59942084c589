"""Windows of a stream: their contents, and that older windows stay valid."""

from __future__ import annotations

import torch

from lagwise.ops.window import Window


def signal(length: int) -> torch.Tensor:
    return torch.randn(2, length, 3)


def test_gradients_of_past_windows_stay_valid() -> None:
    """Later tokens, with or without gradients, do not overwrite what the backward pass will read."""
    weight = torch.ones(3, requires_grad=True)
    window = Window.empty(1, 3, 20, like=torch.zeros(1)).append(torch.ones(1, 5, 3))
    total = (window.tokens * weight).sum()
    for _ in range(3):
        window = window.append(torch.ones(1, 1, 3))
        total = total + (window.tokens * weight).sum()
    with torch.no_grad():
        window.append(torch.ones(1, 1, 3))
    total.backward()
    assert weight.grad is not None
    assert weight.grad.tolist() == [26.0] * 3


@torch.no_grad()
def test_storage_is_copied_once_per_reach_tokens() -> None:
    """Storage moves only when it is full, and is never more than twice the reach."""
    window = Window.empty(1, 3, 64, like=torch.zeros(1))
    places = set()
    for _ in range(1000):
        window = window.append(torch.randn(1, 1, 3))
        places.add(window.tokens.untyped_storage().data_ptr())
        assert window.tokens.untyped_storage().nbytes() <= 2 * 64 * 3 * 4
    held = []
    for _ in range(128):  # held, so that no address is used again
        window = window.append(torch.randn(1, 1, 3))
        held.append(window.tokens)
    assert len({t.untyped_storage().data_ptr() for t in held}) <= 3


def test_a_window_from_inference_mode_continues_outside_it() -> None:
    with torch.inference_mode():
        window = Window.empty(1, 3, 8, like=torch.zeros(1)).append(torch.randn(1, 4, 3))
    assert window.append(torch.randn(1, 1, 3)).size == 5
