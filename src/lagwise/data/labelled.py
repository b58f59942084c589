"""Labelled rows, encoded for a model: text, pairs of texts or series, with a class or a number each."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import KW_ONLY, dataclass, fields
from functools import cached_property
from pathlib import Path
from typing import Any

import lagwise.data.arrow as pa
from lagwise.cache import keep_also
from lagwise.data.encoding import RowEncoder
from lagwise.data.find import Data
from lagwise.data.labelled_rows import LABEL, RATE, LabelledColumns, LabelledRows, label_columns, read_labelled
from lagwise.data.labels import KINDS, MULTI_LABEL
from lagwise.data.rows import RowSource, open_rows
from lagwise.data.splits import SPLITS, Prepared, arrow_file, key_of
from lagwise.data.tokenizers import TOKENIZERS, load_tokenizer
from lagwise.data.tokens import content_key
from lagwise.progress import progress_bar
from lagwise.tables import check_integer, counted, known

INPUTS = ("tokens", "values")


@dataclass(frozen=True)
class LabelledData(LabelledColumns, Prepared):
    """The encoded rows of a table in three splits.

    Attributes:
        splits: data sets with the columns input_ids (lists of token ids; of pairs also token_type_ids) or input_values
            (lists of ``features`` float32 each), label (the id of a class, a number, or 0 or 1 for each of several
            labels), length (of the inputs) and, of sounds whose rates differ, sampling_rate.
        cut: number of rows of each split that were longer than the limit.
        length, separate: those of `RowEncoder`.
        is_bytes: whether tokens are bytes.
    """

    _: KW_ONLY
    cut: dict[str, int]
    length: int
    separate: bool
    is_bytes: bool

    @cached_property
    def encoder(self) -> RowEncoder:
        """The encoder for other rows."""
        tokenizer = load_tokenizer(str(self.folder / "tokenizer")) if self.features is None else None
        return RowEncoder(self.columns, self.length, tokenizer, self.is_bytes, self.features, self.separate, gaps=True)

    @property
    def tokenizer(self) -> Any:
        return self.encoder.tokenizer

    def describe(self) -> str:
        """Return the kind, classes and sizes in one line, then a line for everything unusual."""
        noun = "labels" if self.kind == MULTI_LABEL else "classes"
        classes = f" of {len(self.label_names)} {noun}" if self.label_names else ""
        lines = [f"{self.kind.replace('_', '-')}{classes} ({self.reason}); rows: {self.sizes()}"]
        if self.features is not None:
            lengths = [length for rows in self.splits.values() for length in rows["length"][:]]
            shortest, longest = min(lengths), max(lengths)
            samples = f"{shortest:,}" if shortest == longest else f"{shortest:,} to {longest:,}"
            layout = "; arrays are read as (rows, samples, features)" if self.features > longest else ""
            rates = f" at {' and '.join(f'{rate:,}' for rate in self.rates)} Hz" if self.rates else ""
            each = f"{samples} sample{'s' * (longest > 1)} and {counted(self.features, 'feature')}"
            lines.append(f"{len(lengths):,} series of {each}{rates}{layout}")
        lines += self.notes
        for split, count in self.cut.items():
            if count:
                rows = f"{counted(count, 'row')} of {split} ({count / len(self.splits[split]):.1%})"
                each = f"{self.length // 2} for each text" if self.separate else self.length
                lines.append(f"{rows} {'is' if count == 1 else 'are'} cut to length {each}")
        return "\n".join(lines)


def prepare_labelled(
    source: Data | RowSource,
    *,
    text: str | Sequence[str] = "text",
    label: str | list[str] = "label",
    kind: str = "auto",
    inputs: str = "tokens",
    tokenizer: str = "bytes",
    vocab_size: int = 8192,
    length: int = 1024,
    separate: bool = False,
    group: str | None = None,
    cache: Path | None = None,
    progress: bool = True,
) -> LabelledData:
    """Encode a table of labelled rows, or load the cached result.

    Args:
        source: as in `open_rows`.
        text: the column of the inputs, two for pairs, or more that are joined; if there is no column ``text``, the only
            column of text is used. With ``inputs="values"`` it is a column of series, ``input_values`` if not named.
        label: the column of the labels, or columns of 0 and 1 for several labels per row.
        kind: as in `read_labels` and `read_several`.
        tokenizer, vocab_size: as in `load_tokenizer`.
        length: rows are cut to so many tokens or vectors.
        separate: each text of a pair is cut to half of them (`RowEncoder`).
        group: a column whose equal values stay in one split (`split_rows`).

    Missing splits are made as in `split_rows`. In valid and test, rows without a label are left out, and so is a split
    without any label; notes of the result state this.

    ValueError, one line, for missing columns, empty tables, empty texts, inf in series, faulty labels (as in
    `read_labels`) and classes too small to split; OSError with advice when the disk is full.
    """
    source = source if isinstance(source, RowSource) else open_rows(source)
    columns = input_columns(text, label, kind, inputs, length, separate)
    content = content_key(source, tokenizer, vocab_size)

    def key(columns: Sequence[str], label: str | list[str]) -> str:
        return key_of([content, columns, label, kind, inputs, length, separate, group])

    def write(folder: Path) -> dict[str, Any]:
        rows = read_labelled(source, columns, label, kind=kind, values=inputs == "values", group=group)
        return _write(rows, tokenizer, vocab_size, length, separate, folder, progress)

    data = LabelledData.load(key(columns, label), write, source.notes, cache)
    if (data.columns, data.label) != (columns, label):  # a run opens its rows by the columns that were read
        keep_also(data.folder, data.folder.with_name(key(data.columns, data.label)))
    return data


def input_columns(
    text: str | Sequence[str], label: str | list[str], kind: str, inputs: str, length: int, separate: bool
) -> tuple[str, ...]:
    """The columns of the inputs. ValueError for options that are invalid for any data."""
    known(kind, KINDS, "`kind`")
    known(inputs, INPUTS, "`inputs`")
    columns = (text,) if isinstance(text, str) else tuple(text)
    if inputs == "values" and columns == ("text",):
        columns = ("input_values",)
    if (
        not columns
        or (inputs != "tokens" and len(columns) > 1)
        or len(set(columns)) < len(columns)
        or {*columns} & {*label_columns(label)}
    ):
        raise ValueError(
            "`text` must name one column, two for a pair of texts, or more for texts that are joined, other than "
            f"the label's, got {text!r} and label {label!r}"
        )
    check_integer("`length`", length, 2 * len(columns) - 1)
    if separate and len(columns) != 2:
        raise ValueError(f"`separate` is for a pair of texts, got text {text!r}")
    return columns


def _write(
    rows: LabelledRows, tokenizer: str, vocab_size: int, length: int, separate: bool, folder: Path, progress: bool
) -> dict[str, Any]:
    notes = list(rows.notes)
    if rows.features is None:
        train = rows.splits["train"]
        texts = (text for column in rows.columns for text in train[column])
        if tokenizer in TOKENIZERS:
            notes += TOKENIZERS[tokenizer].notes(texts)
        own = load_tokenizer(tokenizer, vocab_size=vocab_size, texts=texts)
        own.save_pretrained(folder / "tokenizer")
        encoder = RowEncoder(rows.columns, length, own, tokenizer == "bytes", separate=separate)
    else:
        encoder = RowEncoder(rows.columns, length, features=rows.features, gaps=True)
    several = rows.kind == MULTI_LABEL
    kind = pa.list_(pa.float32(), len(rows.label_names or ())) if several else None
    labels = pa.field("label", kind or (pa.float32() if rows.label_names is None else pa.int64()))
    added = [(labels, LABEL), *[(pa.field(RATE, pa.int32()), RATE)] * bool(rows.rates)]
    cut = dict.fromkeys(SPLITS, 0)
    for split in SPLITS:
        table: Any = rows.splits[split].with_format("arrow")[:]
        values = [table.column(name).combine_chunks().cast(field.type) for field, name in added]
        schema, start = pa.schema([*encoder.schema(), *(field for field, _ in added)]), 0
        with (
            arrow_file(folder / f"{split}.arrow", schema) as writer,
            progress_bar(desc=f"encoding {split}", unit=" rows", total=table.num_rows, show=progress) as bar,
        ):
            for batch, too_long in encoder.batches(table, lambda i, split=split: f"{split} row {i + 1}"):
                columns = [*batch.columns, *(each.slice(start, batch.num_rows) for each in values)]
                writer.write_batch(pa.RecordBatch.from_arrays(columns, schema=schema))
                start, cut[split] = start + batch.num_rows, cut[split] + too_long
                bar.update(batch.num_rows)
    same = {each.name: getattr(rows, each.name) for each in fields(LabelledColumns)}
    return {**same, "length": length, "is_bytes": encoder.is_bytes, "separate": separate, "cut": cut, "notes": notes}
