"""Models of MEGA and HyenaDNA that transformers saved, as lagwise models. Lazy: the command's help loads no PyTorch."""

from typing import TYPE_CHECKING

from lagwise._lazy import lazy_package

if TYPE_CHECKING:
    from lagwise_papers.imports.hyena import from_hyena_dna
    from lagwise_papers.imports.mega import from_mega
    from lagwise_papers.imports.runs import import_run

__all__, __getattr__, __dir__ = lazy_package(__name__)
