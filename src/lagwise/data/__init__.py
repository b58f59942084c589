"""Text as token files, and tasks: sources, tokenizers, memory maps, examples."""

from lagwise.data.associative_recall import RECALL, AssociativeRecall
from lagwise.data.batches import BucketedExamples, EncodedExamples, PaddingCollator
from lagwise.data.encoding import RowEncoder
from lagwise.data.examples import Data, ScheduledExamples
from lagwise.data.labelled import LabelledData, prepare_labelled
from lagwise.data.packing import DocumentPackingCollator, PackingCollator
from lagwise.data.rows import RowSource, open_rows, split_rows
from lagwise.data.sources import SPLITS, Source, open_source, read_documents
from lagwise.data.tokenizers import load_tokenizer, token_bytes
from lagwise.data.tokens import TokenData, TrainingWindows, content_key, prepare

__all__ = [
    "RECALL",
    "SPLITS",
    "AssociativeRecall",
    "BucketedExamples",
    "Data",
    "DocumentPackingCollator",
    "EncodedExamples",
    "LabelledData",
    "PackingCollator",
    "PaddingCollator",
    "RowEncoder",
    "RowSource",
    "ScheduledExamples",
    "Source",
    "TokenData",
    "TrainingWindows",
    "content_key",
    "load_tokenizer",
    "open_rows",
    "open_source",
    "prepare",
    "prepare_labelled",
    "read_documents",
    "split_rows",
    "token_bytes",
]
