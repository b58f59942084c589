"""Text as token files, and tasks: sources, tokenizers, memory maps, examples."""

from lagwise.data.associative_recall import RECALL, AssociativeRecall
from lagwise.data.examples import Data, ScheduledExamples
from lagwise.data.packing import PackingCollator
from lagwise.data.sources import SPLITS, Source, open_source, read_documents
from lagwise.data.tokenizers import load_tokenizer, token_bytes
from lagwise.data.tokens import TokenData, TrainingWindows, content_key, prepare

__all__ = [
    "RECALL",
    "SPLITS",
    "AssociativeRecall",
    "Data",
    "PackingCollator",
    "ScheduledExamples",
    "Source",
    "TokenData",
    "TrainingWindows",
    "content_key",
    "load_tokenizer",
    "open_source",
    "prepare",
    "read_documents",
    "token_bytes",
]
