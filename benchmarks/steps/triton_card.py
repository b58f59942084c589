"""Triton for a card that is not here."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any


def absent_card(launched: Callable[..., None]) -> tuple[Any, Any]:
    """A driver for Triton as of an H100, and a compiled kernel that calls ``launched`` in place of the driver."""
    from triton.backends.compiler import GPUTarget  # pyrefly: ignore[missing-import]
    from triton.compiler import CompiledKernel  # pyrefly: ignore[missing-import]

    class Kernel(CompiledKernel):
        """A compiled kernel that the driver does not get."""

        run, function, packed_metadata, name, src = staticmethod(launched), 0, (), "kernel", None

        def __init__(self) -> None: ...

        def _init_handles(self) -> None: ...

    card = SimpleNamespace(
        get_current_device=lambda: 0,
        get_current_stream=lambda device: 0,
        get_current_target=lambda: GPUTarget("cuda", 90, 32),
    )
    return card, Kernel()
