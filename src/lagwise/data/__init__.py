"""Text as token files, tables of labelled rows, generators: sources, tokenizers, examples, collators.

Lazy: reading a recipe does not load torch.
"""

from typing import TYPE_CHECKING

from lagwise._lazy import lazy

if TYPE_CHECKING:
    from lagwise.data.associative_recall import AssociativeRecall
    from lagwise.data.batches import BucketedExamples, EncodedExamples, PaddingCollator
    from lagwise.data.encoding import RowEncoder
    from lagwise.data.examples import ScheduledExamples
    from lagwise.data.formats import FORMATS, open_format
    from lagwise.data.glue import LAYOUTS, open_glue
    from lagwise.data.labelled import LabelledData, labelled_key, prepare_labelled
    from lagwise.data.labelled_rows import label_cells, read_labelled, rows_to_score
    from lagwise.data.masking import MaskedExamples, Masking, collate_documents, document_of, masked_example
    from lagwise.data.packing import DocumentPackingCollator, PackingCollator
    from lagwise.data.rows import RowSource, open_rows
    from lagwise.data.series_rows import SeriesSource, open_series
    from lagwise.data.sources import Source, open_source, read_documents
    from lagwise.data.splits import SPLITS, split_rows
    from lagwise.data.streams import StreamedText, StreamLoader, TextStream, open_stream, stream_key
    from lagwise.data.tokenizers import load_tokenizer, spellings, token_bytes, with_mask, with_pairs
    from lagwise.data.tokens import TokenData, TrainingWindows, content_key, prepare

__all__ = [
    "FORMATS",
    "LAYOUTS",
    "SPLITS",
    "AssociativeRecall",
    "BucketedExamples",
    "DocumentPackingCollator",
    "EncodedExamples",
    "LabelledData",
    "MaskedExamples",
    "Masking",
    "PackingCollator",
    "PaddingCollator",
    "RowEncoder",
    "RowSource",
    "ScheduledExamples",
    "SeriesSource",
    "Source",
    "StreamLoader",
    "StreamedText",
    "TextStream",
    "TokenData",
    "TrainingWindows",
    "collate_documents",
    "content_key",
    "document_of",
    "label_cells",
    "labelled_key",
    "load_tokenizer",
    "masked_example",
    "open_format",
    "open_glue",
    "open_rows",
    "open_series",
    "open_source",
    "open_stream",
    "prepare",
    "prepare_labelled",
    "read_documents",
    "read_labelled",
    "rows_to_score",
    "spellings",
    "split_rows",
    "stream_key",
    "token_bytes",
    "with_mask",
    "with_pairs",
]

__getattr__, __dir__ = lazy(
    __name__,
    __all__,
    {
        "AssociativeRecall": "lagwise.data.associative_recall",
        "BucketedExamples": "lagwise.data.batches",
        "DocumentPackingCollator": "lagwise.data.packing",
        "EncodedExamples": "lagwise.data.batches",
        "FORMATS": "lagwise.data.formats",
        "open_format": "lagwise.data.formats",
        "LAYOUTS": "lagwise.data.glue",
        "LabelledData": "lagwise.data.labelled",
        "MaskedExamples": "lagwise.data.masking",
        "Masking": "lagwise.data.masking",
        "PackingCollator": "lagwise.data.packing",
        "PaddingCollator": "lagwise.data.batches",
        "RowEncoder": "lagwise.data.encoding",
        "RowSource": "lagwise.data.rows",
        "SPLITS": "lagwise.data.splits",
        "ScheduledExamples": "lagwise.data.examples",
        "SeriesSource": "lagwise.data.series_rows",
        "Source": "lagwise.data.sources",
        "StreamLoader": "lagwise.data.streams",
        "StreamedText": "lagwise.data.streams",
        "TextStream": "lagwise.data.streams",
        "open_stream": "lagwise.data.streams",
        "stream_key": "lagwise.data.streams",
        "TokenData": "lagwise.data.tokens",
        "TrainingWindows": "lagwise.data.tokens",
        "collate_documents": "lagwise.data.masking",
        "content_key": "lagwise.data.tokens",
        "document_of": "lagwise.data.masking",
        "label_cells": "lagwise.data.labelled_rows",
        "labelled_key": "lagwise.data.labelled",
        "load_tokenizer": "lagwise.data.tokenizers",
        "masked_example": "lagwise.data.masking",
        "open_glue": "lagwise.data.glue",
        "open_rows": "lagwise.data.rows",
        "open_series": "lagwise.data.series_rows",
        "open_source": "lagwise.data.sources",
        "prepare": "lagwise.data.tokens",
        "prepare_labelled": "lagwise.data.labelled",
        "read_documents": "lagwise.data.sources",
        "read_labelled": "lagwise.data.labelled_rows",
        "rows_to_score": "lagwise.data.labelled_rows",
        "split_rows": "lagwise.data.splits",
        "spellings": "lagwise.data.tokenizers",
        "token_bytes": "lagwise.data.tokenizers",
        "with_mask": "lagwise.data.tokenizers",
        "with_pairs": "lagwise.data.tokenizers",
    },
)
