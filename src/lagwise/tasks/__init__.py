"""What can be learned, one task a file."""

from lagwise.tasks.associative_recall import AssociativeRecallTask
from lagwise.tasks.base import Table, Task
from lagwise.tasks.language_modelling import LanguageModelling
from lagwise.tasks.sequence_classification import SequenceClassification

TASKS: dict[str, type[Task]] = {
    "language_modelling": LanguageModelling,
    "associative_recall": AssociativeRecallTask,
    "sequence_classification": SequenceClassification,
}

__all__ = [
    "TASKS",
    "AssociativeRecallTask",
    "LanguageModelling",
    "SequenceClassification",
    "Table",
    "Task",
]
