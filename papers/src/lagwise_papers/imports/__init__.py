"""Models of MEGA and HyenaDNA that transformers saved, as lagwise models."""

from lagwise_papers.imports.hyena import from_hyena_dna
from lagwise_papers.imports.mega import from_mega
from lagwise_papers.imports.runs import import_run

__all__ = ["from_hyena_dna", "from_mega", "import_run"]
