"""Tasks, which say what is learned."""

from lagwise.outside import Registry
from lagwise.tasks.base import Metric, Table, Task, TaskData
from lagwise.tasks.forecasting import Forecasting
from lagwise.tasks.image_classification import ImageClassification
from lagwise.tasks.language_modelling import LanguageModelling, MaskedLanguageModelling
from lagwise.tasks.sequence_classification import SequenceClassification
from lagwise.tasks.sequence_labelling import SequenceLabelling
from lagwise.tasks.signal_to_signal import SignalToSignal

_OWN: dict[str, type[Task]] = {
    "language_modelling": LanguageModelling,
    "masked_language_modelling": MaskedLanguageModelling,
    "sequence_classification": SequenceClassification,
    "image_classification": ImageClassification,
    "sequence_labelling": SequenceLabelling,
    "signal_to_signal": SignalToSignal,
    "forecasting": Forecasting,
}
TASKS = Registry("task", Task, "lagwise.tasks", _OWN)

__all__ = ["TASKS", "Metric", "Table", "Task", "TaskData", *(each.__name__ for each in _OWN.values())]
