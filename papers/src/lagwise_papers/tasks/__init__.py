"""Recall and DNA as tasks, one per file."""

from lagwise_papers.tasks.associative_recall import AssociativeRecallTask
from lagwise_papers.tasks.dna_classification import DnaClassification
from lagwise_papers.tasks.multi_query_recall import MultiQueryRecallTask

__all__ = ["AssociativeRecallTask", "DnaClassification", "MultiQueryRecallTask"]
