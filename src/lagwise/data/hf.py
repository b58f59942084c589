"""datasets, imported when one of its names is first used: its package is optional, and takes a while to import."""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from datasets import *  # noqa: F403


def __getattr__(name: str) -> Any:
    import datasets

    return getattr(datasets, name)
