"""Arrays of numbers as columns of lists in Arrow, and back."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

import lagwise.data.arrow as pa

SERIES, FOLDER_LABEL = "input_values", "label"  # the columns of series, and of the names of folders
_ROWS_AT_ONCE = 16  # of a data set, which may be long recordings
_MAX_CHUNK_ELEMENTS = 1 << 28  # most elements in a chunk, which Arrow counts in 32 bits


def array_column(array: np.ndarray) -> pa.ChunkedArray:
    """A column of an array ``(rows, ...)``; the size of the second axis may differ in other parts of the column."""
    if array.ndim == 1:
        array = np.char.decode(array, "utf-8") if array.dtype.kind == "S" else array
        return pa.chunked_array([pa.array(array.tolist() if array.dtype.kind == "U" else array)])
    chunks = []
    rows = max(1, _MAX_CHUNK_ELEMENTS // max(1, array[0].size)) if len(array) else 1
    for start in range(0, max(1, len(array)), rows):
        part = array[start : start + rows]
        values: Any = pa.array(np.ascontiguousarray(part).reshape(-1))
        for size in reversed(part.shape[2:]):
            values = pa.FixedSizeListArray.from_arrays(values, size)
        offsets = pa.array(np.arange(len(part) + 1, dtype=np.int32) * part.shape[1])
        chunks.append(pa.ListArray.from_arrays(offsets, values))
    return pa.chunked_array(chunks)


def row_arrays(column: pa.ChunkedArray | pa.Array) -> Iterator[np.ndarray]:
    """The rows of a column of lists as arrays ``(length,)`` or ``(length, size)``; a null number is NaN. TypeError for
    a column of other types."""
    if isinstance(column, pa.ChunkedArray):
        for chunk in column.chunks:
            yield from row_arrays(chunk)
        return
    if not is_list(column.type):
        raise TypeError(f"a column of {column.type}")
    for row in column:
        values: Any = row.values
        if values is None:
            yield np.empty(0, dtype=np.float32)
            continue
        shape = [len(values)]
        if is_list(values.type):
            fixed = pa.types.is_fixed_size_list(values.type)
            sizes = {len(v) if v is not None else 0 for v in values} if not fixed else set()
            if len(sizes) > 1:
                raise ValueError(f"its vectors have {min(sizes)} to {max(sizes)} numbers")
            shape.append(values.type.list_size if fixed else next(iter(sizes), 1))
            values = values.flatten()
        if is_list(values.type):
            raise TypeError(f"a column of {column.type}")
        numbers = values.to_numpy(zero_copy_only=False)
        if numbers.dtype.kind not in "biuf":
            raise TypeError(f"a column of {column.type}")
        yield numbers.reshape(shape)


def series(rows: Any, column: str = SERIES) -> Iterator[np.ndarray]:
    """The rows of a column of lists of a data set or a table, one by one, as `row_arrays`."""
    tables = rows.with_format("arrow").iter(_ROWS_AT_ONCE) if hasattr(rows, "with_format") else [rows]
    for table in tables:
        yield from map(np.copy, row_arrays(table.column(column)))


def is_list(kind: pa.DataType) -> bool:
    return pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind)


def list_column(rows: Sequence[np.ndarray], kind: Any) -> pa.Array:
    """A column of lists, of numbers or of vectors of one size."""
    offsets = pa.array(np.cumsum([0, *map(len, rows)]), pa.int32())
    inner = kind.value_type
    flat = np.concatenate(rows).reshape(-1)
    if pa.types.is_fixed_size_list(inner):
        values: Any = pa.FixedSizeListArray.from_arrays(pa.array(flat, inner.value_type), inner.list_size)
    else:
        values = pa.array(flat.astype(inner.to_pandas_dtype()))
    return pa.ListArray.from_arrays(offsets, values)
