"""Text as token files, tables of labelled rows: sources, tokenizers, examples, collators.

Lazy: reading a recipe does not load torch.
"""

from typing import TYPE_CHECKING

from lagwise._lazy import lazy_package

if TYPE_CHECKING:
    from lagwise.data.batches import BucketedExamples, EncodedExamples, PaddingCollator
    from lagwise.data.encoding import RowEncoder
    from lagwise.data.examples import ScheduledExamples, TrainingWindows
    from lagwise.data.labelled import LabelledData, prepare_labelled
    from lagwise.data.labelled_rows import label_cells, read_labelled, rows_to_score
    from lagwise.data.masking import MaskedExamples, Masking, collate_documents, document_of
    from lagwise.data.rows import FORMATS, RowSource, open_rows
    from lagwise.data.series import SeriesSource, open_series
    from lagwise.data.splits import SPLITS, split_rows
    from lagwise.data.tokenizers import load_tokenizer, spellings, token_bytes, with_mask, with_pairs
    from lagwise.data.tokens import Source, TokenData, content_key, open_source, prepare

__all__, __getattr__, __dir__ = lazy_package(__name__)
