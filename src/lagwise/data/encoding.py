"""Rows as the inputs of a model: texts or pairs of texts as token ids, series as arrays."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

import lagwise.data.arrow as pa
import lagwise.data.hf as hf
from lagwise.data.arrays import list_column, row_arrays
from lagwise.data.tokenizers import encode_texts

_MAX_BATCH_ROWS = 1000
_MAX_STD_RATIO = 100.0  # rows share a scale if their standard deviations differ by less
_MAX_BATCH_ELEMENTS = 1 << 24  # elements of rows that have the full length


@dataclass(frozen=True)
class RowEncoder:
    """Encodes the columns ``columns`` of rows as inputs of at most ``length`` positions.

    Attributes:
        tokenizer: encodes a text, or a pair as ``first <end of text> second`` with token_type_ids 0 and 1 (the end of
            text belongs to the first); the longer of a pair is cut first. Texts of three or more columns are joined by
            the tokenizer's ``sep_token``, or else the end of text, and cut at the end. Nothing else is added: an empty
            text is a single end of text. None for series.
        is_bytes: the tokenizer is ``bytes``, whose ids need no library.
        features: number of features per position of a series.
        gaps: samples of a series may be missing (NaN).
        separate: texts of a pair have no end of text between them, and each is cut to half of the length.
    """

    columns: tuple[str, ...]
    length: int
    tokenizer: Any = None
    is_bytes: bool = False
    features: int | None = None
    separate: bool = False
    gaps: bool = False

    def __call__(self, rows: hf.Dataset | Iterable[Mapping[str, Any]]) -> hf.Dataset:
        """Encode rows as input_ids (and token_type_ids) or input_values, and length; other columns are ignored.

        ValueError names a row without one of the columns, a text that is not a string, or a series that is not
        ``(length, features)``, has inf, or, without ``gaps``, NaN.
        """
        return hf.Dataset(self.table(rows))

    def table(self, rows: hf.Dataset | Iterable[Mapping[str, Any]]) -> pa.Table:
        """Return the examples as a table of Arrow, without importing datasets, which takes half a second."""
        source: Any = rows
        table: Any = source.with_format("arrow")[:] if hasattr(rows, "with_format") else self._table(source)
        for column in self.columns:
            if column not in table.column_names:
                has = ", ".join(table.column_names) or "nothing"
                raise ValueError(f"the rows have no {column!r} (they have {has})")
            kind = table.column(column).type
            if self.tokenizer is not None and kind not in (pa.string(), pa.large_string(), pa.null()):
                raise ValueError(f"{column!r} must be text, got {kind}")
        batches = [batch for batch, _ in self.batches(table, lambda i: f"row {i + 1}")]
        return pa.Table.from_batches(batches, schema=self.schema())

    def _table(self, rows: Iterable[Mapping[str, Any]]) -> pa.Table:
        """The columns that are read, of rows as mappings."""
        cells: dict[str, list[Any]] = {column: [] for column in self.columns}
        for number, row in enumerate(rows, 1):
            for column in self.columns:
                if column not in row:
                    raise ValueError(f"row {number} has no {column!r} (it has {', '.join(map(str, row)) or 'nothing'})")
                value = row[column]
                if self.tokenizer is not None and not isinstance(value, str | None):
                    raise ValueError(f"row {number}: {column!r} must be text, got {type(value).__name__}")
                try:
                    converted = value if self.tokenizer is not None else np.asarray(value, dtype=np.float32).tolist()
                except (ValueError, TypeError) as error:
                    raise ValueError(f"row {number}: {column!r} is not a series of numbers: {error}") from error
                cells[column].append(converted)
        try:
            return pa.table(cells)
        except (pa.ArrowException, UnicodeEncodeError) as error:
            raise ValueError(f"cannot read the rows: {error}") from error

    def schema(self) -> pa.Schema:
        """The columns that `batches` returns."""
        if self.tokenizer is None:
            assert self.features is not None
            fields = {"input_values": pa.list_(pa.list_(pa.float32(), self.features))}
        else:
            kind = pa.uint16() if len(self.tokenizer) <= 1 << 16 else pa.uint32()
            fields = {"input_ids": pa.list_(kind)}
            if len(self.columns) == 2:
                fields["token_type_ids"] = pa.list_(pa.uint8())
        return pa.schema([*fields.items(), ("length", pa.int32())])

    def batches(self, table: pa.Table, where: Any) -> Iterator[tuple[pa.RecordBatch, int]]:
        """Yield the encoded rows of a table in order, and how many rows of each batch were cut to ``length``. where:
        names row i."""
        size = max(1, min(_MAX_BATCH_ROWS, _MAX_BATCH_ELEMENTS // (self.length * (self.features or 1))))
        for start in range(0, table.num_rows, size):
            part = table.slice(start, size)
            if self.tokenizer is None:
                yield self._series(part, lambda i, start=start: where(start + i))
            else:
                yield self._texts([part.column(c).to_pylist() for c in self.columns])

    def _texts(self, texts: Sequence[Sequence[str | None]]) -> tuple[pa.RecordBatch, int]:
        end = np.asarray([self.tokenizer.eos_token_id])
        rows = list(zip(*(self.ids([text or "" for text in column]) for column in texts), strict=True))
        if len(self.columns) > 2:
            between = end if self.tokenizer.sep_token_id is None else np.asarray([self.tokenizer.sep_token_id])
            rows = [(np.concatenate([p for part in row for p in (between, part)][1:]),) for row in rows]
        if self.separate:
            cut = sum(max(map(len, row)) > self.length // 2 for row in rows)
            rows = [tuple(part[: self.length // 2] if len(part) else end for part in row) for row in rows]
        else:
            cut = sum(sum(map(len, row)) + len(row) - 1 > self.length for row in rows)
            rows = [self._cut(row, end) for row in rows]
        ids = [np.concatenate(row) for row in rows]
        schema = self.schema()
        columns = [list_column(ids, schema.field("input_ids").type)]
        if len(self.columns) == 2:
            types = [np.repeat(np.asarray([0, 1], dtype=np.uint8), list(map(len, row))) for row in rows]
            columns.append(list_column(types, schema.field("token_type_ids").type))
        columns.append(pa.array(list(map(len, ids)), pa.int32()))
        return pa.RecordBatch.from_arrays(columns, schema=schema), cut

    def _cut(self, row: tuple[np.ndarray, ...], end: np.ndarray) -> tuple[np.ndarray, ...]:
        """A text, or a pair with the end of text between, of at most ``length`` tokens."""
        if len(row) == 1:
            return (row[0][: self.length] if len(row[0]) else end,)
        first, second = row
        keep = max(self.length - 1 - len(second), self.length // 2)
        first = np.append(first[:keep], end)
        return first, second[: self.length - len(first)]

    def ids(self, texts: list[str]) -> list[np.ndarray]:
        """The token ids of each text, not truncated."""
        return encode_texts(texts, self.tokenizer, self.is_bytes)

    def _series(self, part: pa.Table, where: Any) -> tuple[pa.RecordBatch, int]:
        (name,) = self.columns
        rows = list(read_series(part.column(name), name, where, gaps=self.gaps, features=self.features))
        cut = sum(len(row) > self.length for row in rows)
        rows = [row[: self.length] for row in rows]
        schema = self.schema()
        columns = [list_column(rows, schema.field("input_values").type), pa.array(list(map(len, rows)), pa.int32())]
        return pa.RecordBatch.from_arrays(columns, schema=schema), cut


def read_series(
    column: Any, name: str, where: Any, *, gaps: bool = True, features: int | None = None
) -> Iterator[np.ndarray]:
    """The rows of a column as float32 arrays ``(length, features)``; ``where`` names row i in messages. gaps: samples
    may be missing (NaN), but not all of a row. features: their number, else that of the first row."""
    i = 0
    try:
        for row in row_arrays(column):
            if not len(row):
                raise ValueError("it is empty")
            values = row.astype(np.float32).reshape(len(row), -1)
            wrong = np.isinf(values) if gaps else ~np.isfinite(values)
            if wrong.any():
                samples = np.flatnonzero(wrong.any(axis=1))
                more = f" and {len(samples) - 1:,} more" if len(samples) > 1 else ""
                fault, advice = "inf", "; leave it empty where one is missing"
                if not np.isinf(values).any():
                    fault, advice = "NaN", ", but the model was trained without gaps; fill them, or train with some"
                raise ValueError(f"it has {fault} at position {samples[0]}{more}{advice}")
            if gaps and np.isnan(values).all():
                raise ValueError("all its samples are missing; leave it out")
            features = values.shape[1] if features is None else features
            if values.shape[1] != features:
                raise ValueError(f"it has {values.shape[1]} features, not {features} as other series")
            yield values
            i += 1
    except TypeError as error:
        raise ValueError(
            f"{name!r} must hold series, lists of numbers or of equally long vectors, but it is {error}"
        ) from error
    except ValueError as error:
        raise ValueError(f"{name!r} of {where(i)} is not a series of finite numbers: {error}") from error


def feature_scale(series: Iterable[np.ndarray]) -> tuple[list[float], list[float]]:
    """The mean and standard deviation of each feature of series ``(length, features)`` over all samples but missing
    ones (NaN), in one pass; the deviation of a constant feature is 1."""
    count, mean, square = np.zeros(1), np.zeros(1), np.zeros(1)  # Chan et al. 1979
    for each in series:
        present = ~np.isnan(each)
        size = present.sum(0)
        own = np.where(present, each, 0).sum(0, dtype=np.float64) / np.maximum(size, 1)
        total = np.maximum(count + size, 1)
        square = square + (np.where(present, each - own, 0) ** 2).sum(0) + (own - mean) ** 2 * (count * size / total)
        mean, count = mean + (own - mean) * (size / total), count + size
    std = np.sqrt(square / np.maximum(1, count))
    return mean.tolist(), np.where(std > 1e-7 * (abs(mean) + 1e-30), std, 1.0).tolist()


def sizes_differ(series: Iterable[np.ndarray]) -> bool:
    """Whether the deviations of a feature within rows differ so much that one scale leaves many rows almost constant:
    between a twentieth of the rows at either end, a hundredfold."""
    stds = np.array([np.nanstd(each, axis=0, dtype=np.float64) for each in series if not np.isnan(each).all(0).any()])
    for each in stds.T:
        varied = each[each > 0]
        if len(varied) > 1 and np.quantile(varied, 0.95) > _MAX_STD_RATIO * np.quantile(varied, 0.05):
            return True
    return False


def typical_time(series: Iterable[np.ndarray]) -> float:
    """The median time between samples of series that have times; 1 if none has two samples."""
    since = np.concatenate([np.zeros(0), *(each[1:, 0] for each in series)])
    return float(np.median(since)) if len(since) else 1.0


def timed_fields(time: str | None) -> dict[str, Any]:
    """The input fields of a model of samples with times that are known before the data are read; none without times."""
    return {} if time is None else {"features": 2, "time": 1.0}
