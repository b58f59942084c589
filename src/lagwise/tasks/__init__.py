"""What can be learned, one per file."""

from lagwise.tasks.associative_recall import AssociativeRecallTask
from lagwise.tasks.base import Metric, Table, Task, TaskData
from lagwise.tasks.forecasting import Forecasting
from lagwise.tasks.image_classification import ImageClassification
from lagwise.tasks.language_modelling import LanguageModelling
from lagwise.tasks.masked_language_modelling import MaskedLanguageModelling
from lagwise.tasks.multi_query_recall import MultiQueryRecallTask
from lagwise.tasks.sequence_classification import SequenceClassification
from lagwise.tasks.sequence_labelling import SequenceLabelling
from lagwise.tasks.signal_to_signal import SignalToSignal

TASKS: dict[str, type[Task]] = {
    "language_modelling": LanguageModelling,
    "masked_language_modelling": MaskedLanguageModelling,
    "associative_recall": AssociativeRecallTask,
    "multi_query_recall": MultiQueryRecallTask,
    "sequence_classification": SequenceClassification,
    "image_classification": ImageClassification,
    "sequence_labelling": SequenceLabelling,
    "signal_to_signal": SignalToSignal,
    "forecasting": Forecasting,
}

__all__ = ["TASKS", "Metric", "Table", "Task", "TaskData", *(each.__name__ for each in TASKS.values())]
