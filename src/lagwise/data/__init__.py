"""Text as token files, tables of labelled rows, generators: sources, tokenizers, examples, collators."""

from lagwise.data.associative_recall import AssociativeRecall
from lagwise.data.batches import BucketedExamples, EncodedExamples, PaddingCollator
from lagwise.data.encoding import RowEncoder
from lagwise.data.examples import ScheduledExamples
from lagwise.data.labelled import LabelledData, labelled_key, prepare_labelled
from lagwise.data.packing import DocumentPackingCollator, PackingCollator
from lagwise.data.rows import RowSource, open_rows, split_rows
from lagwise.data.sources import SPLITS, Source, open_source, read_documents
from lagwise.data.tokenizers import load_tokenizer, token_bytes
from lagwise.data.tokens import TokenData, TrainingWindows, content_key, prepare

__all__ = [
    "SPLITS",
    "AssociativeRecall",
    "BucketedExamples",
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
    "labelled_key",
    "load_tokenizer",
    "open_rows",
    "open_source",
    "prepare",
    "prepare_labelled",
    "read_documents",
    "split_rows",
    "token_bytes",
]
