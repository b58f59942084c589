"""Text as token files: sources, tokenizers, memory maps."""

from lagwise.data.sources import SPLITS, Source, open_source, read_documents
from lagwise.data.tokenizers import load_tokenizer, token_bytes
from lagwise.data.tokens import TokenData, TrainingWindows, content_key, prepare

__all__ = [
    "SPLITS",
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
