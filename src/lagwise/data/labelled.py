"""Labelled rows, encoded for a model: text, pairs of texts or series, with a class or a number each."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import lagwise.data.arrow as pa
from lagwise.cache import keep_also
from lagwise.data.encoding import RowEncoder
from lagwise.data.labelled_rows import (
    LABEL,
    RATE,
    LabelledRows,
    label_columns,
    names_as_written,
    read_labelled,
)
from lagwise.data.labels import KINDS
from lagwise.data.letters import strange_letters
from lagwise.data.prepared import arrow_file, key_of, prepared_rows
from lagwise.data.rows import RowSource, open_rows
from lagwise.data.several_labels import MULTI_LABEL
from lagwise.data.splits import SPLITS
from lagwise.data.tokenizers import load_tokenizer
from lagwise.data.tokens import content_key
from lagwise.progress import progress_bar
from lagwise.tables import check_integer, counted, known

if TYPE_CHECKING:
    from datasets import Dataset
    from transformers import PreTrainedTokenizerBase

_FORMAT = 2  # raise when the meaning of the files changes
INPUTS = ("tokens", "values")


@dataclass(frozen=True)
class LabelledData:
    """Encoded rows in three splits.

    Attributes:
        splits: data sets with the columns input_ids (lists of token ids; of pairs also token_type_ids) or input_values
            (lists of ``features`` float32 each), label (the id of a class, a number, or 0 or 1 for each of several
            labels), length (of the inputs) and, of sounds whose rates differ, sampling_rate.
        label: the column of the labels, or those of 0 and 1.
        label_names: names of the classes, by id; None in regression.
        reason: why it is of this kind.
        gaps: whether any sample of a series is missing (NaN).
        rates: sampling rates of sounds in Hz, where they differ.
        cut: number of rows of each split that were longer than the limit.
        counts: rows of each class in each split; empty in regression.
        notes: further facts for the reader, one line each.
        encoder: encodes other rows.
    """

    folder: Path
    splits: dict[str, Dataset]
    encoder: RowEncoder
    label: str | list[str]
    kind: str
    reason: str
    label_names: tuple[str, ...] | None
    gaps: bool
    rates: tuple[int, ...]
    cut: dict[str, int]
    counts: dict[str, dict[str, int]]
    notes: tuple[str, ...]

    @property
    def key(self) -> str:
        """Hash of the rows and of all that decides how they are encoded."""
        return self.folder.name

    @property
    def tokenizer(self) -> PreTrainedTokenizerBase | None:
        return self.encoder.tokenizer

    @property
    def features(self) -> int | None:
        return self.encoder.features

    def encode(self, rows: Iterable[Mapping[str, Any]]) -> Dataset:
        """Inputs of rows that need no labels, in order; an empty text is a single end of text (see `RowEncoder`)."""
        return self.encoder(rows)

    def describe(self) -> str:
        """Kind, classes and sizes in one line, then a line for everything unusual."""
        what = "labels" if self.kind == MULTI_LABEL else "classes"
        classes = f" of {len(self.label_names)} {what}" if self.label_names else ""
        sizes = ", ".join(f"{split} {len(rows):,}" for split, rows in self.splits.items())
        lines = [f"{self.kind.replace('_', '-')}{classes} ({self.reason}); rows: {sizes}", *self._shapes(), *self.notes]
        for split, count in self.cut.items():
            if count:
                share = count / len(self.splits[split])
                each = f"{self.encoder.length // 2} for each text" if self.encoder.separate else self.encoder.length
                rows = f"{counted(count, 'row')} of {split} ({share:.1%})"
                lines.append(f"{rows} {'is' if count == 1 else 'are'} cut to length {each}")
        return "\n".join(lines)

    def _shapes(self) -> list[str]:
        """The samples and features of series, in one line."""
        if self.features is None:
            return []
        lengths = [length for rows in self.splits.values() for length in rows["length"][:]]
        least, most = min(lengths), max(lengths)
        samples = f"{least:,}" if least == most else f"{least:,} to {most:,}"
        layout = "; arrays are read as (rows, samples, features)" if self.features > most else ""
        rates = f" at {' and '.join(f'{rate:,}' for rate in self.rates)} Hz" if self.rates else ""
        return [
            f"{len(lengths):,} series of {samples} sample{'s' * (most > 1)} and "
            f"{counted(self.features, 'feature')}{rates}{layout}"
        ]


def prepare_labelled(
    source: str | RowSource,
    *,
    text: str | Sequence[str] = "text",
    label: str | list[str] = "label",
    kind: str = "auto",
    inputs: str = "tokens",
    tokenizer: str = "bytes",
    vocab_size: int = 8192,
    length: int = 1024,
    separate: bool = False,
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

    Missing splits are made as in `split_rows`. In valid and test, rows without a label are left out, and so is a split
    without any label; notes of the result state this.

    ValueError, one line, for missing columns, empty tables, empty texts, inf in series, faulty labels (as in
    `read_labels`) and classes too small to split; OSError with advice when the disk is full.
    """
    source = names_as_written(open_rows(source) if isinstance(source, str) else source, label, kind)
    columns = input_columns(text, label, kind, inputs, length, separate)
    content = content_key(source, tokenizer, vocab_size)
    key = _key(content, columns, label, kind, inputs, length, separate)

    def write(folder: Path) -> dict[str, Any]:
        rows = read_labelled(source, columns, label, kind=kind, values=inputs == "values")
        return _write(rows, tokenizer, vocab_size, length, separate, folder, progress)

    folder, splits, meta = prepared_rows("labelled", key, write, cache)
    found = tuple(meta["columns"])
    named = meta.get("label", label)
    if (found, named) != (columns, label):  # a run keeps the columns that were found, and opens its rows by those
        keep_also(folder, folder.with_name(_key(content, found, named, kind, inputs, length, separate)), meta)
    made = load_tokenizer(str(folder / "tokenizer")) if meta["features"] is None else None
    separate = meta.get("separate", False)  # folders of earlier versions do not have it
    return LabelledData(
        folder=folder,
        splits=splits,
        label=named,
        encoder=RowEncoder(found, meta["length"], made, meta["is_bytes"], meta["features"], separate, gaps=True),
        kind=meta["kind"],
        reason=meta["reason"],
        label_names=None if meta["label_names"] is None else tuple(meta["label_names"]),
        gaps=meta.get("gaps", False),  # earlier versions refused them
        rates=tuple(meta.get("rates", ())),  # and these
        cut=meta["cut"],
        counts=meta["counts"],
        notes=(*source.notes, *meta["notes"]),  # those on files that are not read do not change with the rows
    )


def labelled_key(
    source: str | RowSource,
    *,
    text: str | Sequence[str],
    label: str | list[str],
    kind: str,
    inputs: str,
    tokenizer: str,
    vocab_size: int,
    length: int,
    separate: bool = False,
) -> str:
    """Hash of the rows and of all that decides how they are encoded; arguments as in `prepare_labelled`. Nothing is
    encoded. ValueError for options that are invalid for any data."""
    columns = input_columns(text, label, kind, inputs, length, separate)
    source = names_as_written(open_rows(source) if isinstance(source, str) else source, label, kind)
    return _key(content_key(source, tokenizer, vocab_size), columns, label, kind, inputs, length, separate)


def _key(content: str, columns: Sequence[str], *options: Any) -> str:
    """The key of encoded rows of some content; ``options`` are label, kind, inputs, length and separate."""
    *others, separate = options
    return key_of([_FORMAT, content, columns, *others, *["separate"] * separate])  # other keys stay as they were


def input_columns(
    text: str | Sequence[str], label: str | list[str], kind: str, inputs: str, length: int, separate: bool
) -> tuple[str, ...]:
    """The columns of the inputs. ValueError for options that are invalid for any data."""
    known(kind, KINDS, "task.kind")
    known(inputs, INPUTS, "task.inputs")
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
            "task.text must name one column, two for a pair of texts, or more for texts that are joined, other than "
            f"the label's, got {text!r} and label {label!r}"
        )
    check_integer("data.length", length, 2 * len(columns) - 1)
    if separate and len(columns) != 2:
        raise ValueError(f"task.separate is for a pair of texts, got text {text!r}")
    return columns


def _write(
    rows: LabelledRows, tokenizer: str, vocab_size: int, length: int, separate: bool, folder: Path, progress: bool
) -> dict[str, Any]:
    notes = list(rows.notes)
    if rows.features is None:
        train = rows.splits["train"]
        texts = (text for column in rows.columns for text in train[column])
        if tokenizer == "dna":
            notes += strange_letters(texts)
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
    same = ("columns", "label", "features", "gaps", "rates", "kind", "reason", "label_names", "counts")
    made = {
        "source": rows.name,
        "notes": notes,
        "length": length,
        "is_bytes": encoder.is_bytes,
        "separate": separate,
        "cut": cut,
    }
    return {**{name: getattr(rows, name) for name in same}, **made}
