"""Labelled rows as stored in the data: found, checked, and split into train, valid and test."""

from __future__ import annotations

import difflib
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import date, time
from decimal import Decimal
from typing import Any

import numpy as np

import lagwise.data.hf as hf
from lagwise.data.arrays import SERIES
from lagwise.data.encoding import read_series
from lagwise.data.find import check_names
from lagwise.data.labels import (
    MULTI_LABEL,
    Labels,
    alike_note,
    has_lists,
    indicator_columns,
    named_columns,
    read_labels,
    read_labels_for,
    read_several,
    read_several_for,
    strata,
)
from lagwise.data.reading import has_records
from lagwise.data.rows import RATE, RowSource, check_train, rows_to_evaluate
from lagwise.data.series_files import SOUNDS
from lagwise.data.splits import SPLITS, made_note, shared_rows, split_rows
from lagwise.data.text_tables import are_numbers, count_up, is_number, with_points
from lagwise.data.tokens import chat_hint

LABEL = "__label__"  # the column of class ids or numbers, beside columns of any name
_LONG, _MANY = 40, 20  # characters of a column's name, and columns, in a message
_SAMPLE_ROWS = 100  # rows that distinguish columns of text, categories and numbers
_MIN_CATEGORY_ROWS = 10  # fewer do not show a category


@dataclass(frozen=True)
class LabelledColumns:
    """The content of the columns of labelled rows."""

    kind: str  # classification, regression or multi_label
    reason: str  # of the kind, in words
    label_names: tuple[str, ...] | None  # of the classes, by id; None in regression
    counts: dict[str, dict[str, int]]  # rows of each class in each split; empty in regression
    columns: tuple[str, ...] = ()  # of the inputs
    label: str | list[str] = LABEL  # the column of the labels, or those of 0 and 1
    features: int | None = None  # of each sample of a series, None for text
    gaps: bool = False  # whether any sample of a series is missing (NaN)
    rates: tuple[int, ...] = ()  # of sounds in Hz, where they differ; rows then have the column RATE too


@dataclass(frozen=True, kw_only=True)
class LabelledRows(LabelledColumns):
    """The labelled rows of a table in splits, which have the columns of the inputs, and LABEL."""

    splits: dict[str, hf.Dataset]
    notes: tuple[str, ...]


def read_labelled(
    source: RowSource,
    columns: tuple[str, ...],
    label: str | list[str],
    *,
    kind: str = "auto",
    values: bool = False,
    group: str | None = None,
) -> LabelledRows:
    """Read, check and split labelled rows. Errors as `prepare_labelled`.

    Args:
        columns: of the inputs.
        label: one column, or several of 0 and 1.
        kind: as in `prepare_labelled`.
        values: whether the inputs are series, not text.
        group: a column whose equal values stay in one split (`split_rows`).
    """
    groups = [] if group is None else [group]
    needed = (*columns, *label_columns(label), *groups, *[RATE] * bool(source.of_kind(SOUNDS)))
    tables = source.read(needed)
    if not all({*needed} <= {*rows.column_names} for rows in tables.values()):
        tables = source.read()  # to choose and to name others
    check_train(tables, repr(source.name), "rows")
    first, alone = tables["train"], len(tables) == 1
    if columns == ("text",) and {"text", SERIES} & {*first.column_names} == {SERIES}:
        raise ValueError(  # else the names of sounds would be read as text
            f"{source.name!r} has series (column {SERIES!r}), not texts: use the recipe signal or series, which have "
            "`inputs=values`, or name a column of text with `text=COLUMN`"
        )
    columns, reading = _input_columns(source.name, first, columns, (*label_columns(label), *groups), values)
    if kind == MULTI_LABEL and isinstance(label, str) and label not in first.column_names:
        label = indicator_columns(first, columns) or label
    options = {**dict.fromkeys(columns, "text"), **dict.fromkeys(label_columns(label), "label")}
    options |= dict.fromkeys(groups, "group")
    for split, rows in tables.items():
        table_name = f"{'' if alone else f'{split} of '}{source.name!r}"
        if absent := {column: option for column, option in options.items() if column not in rows.column_names}:
            raise ValueError(_no_column(absent, rows, first.column_names, columns, table_name, source))

    def where(split: str, row: int) -> str:
        return f"row {row + 1}" if alone else f"{split} row {row + 1}"

    try:
        in_folders = isinstance(label, str) and source.folder_label == label
        if in_folders:
            check_names(classes := {name for rows in tables.values() for name in rows[label][:]}, "files")
            if len(classes) == 1:
                raise ValueError(_one_folder(first, label, source))
        labels = _labels(tables, label, kind, where, in_folders, source.usual_decimal)
        features, gaps = _check_inputs(tables, columns, values, where)
        hertz: set[int] = set()
        if values and source.any_rate and all(RATE in rows.column_names for rows in tables.values()):
            hertz = {rate for rows in tables.values() for rate in rows[RATE][:]}
        rates = tuple(sorted(hertz)) if len(hertz) > 1 else ()
        labelled = split_labelled(tables, (*columns, *[RATE] * bool(rates)), labels, group=group)
    except ValueError as error:
        raise ValueError(f"{source.name!r}: {error}") from error
    own: dict[str, Any] = {"columns": columns, "label": label, "features": features, "gaps": gaps, "rates": rates}
    return replace(labelled, notes=(*reading, *labelled.notes), **own)


def split_labelled(
    tables: Mapping[str, hf.Dataset],
    columns: Sequence[str],
    labels: Labels,
    *,
    label: str = LABEL,
    noun: str = "row",
    group: str | None = None,
) -> LabelledRows:
    """The rows that have a label, in the three splits: their columns of inputs and ``label``, ids of classes or
    numbers, with notes in which ``noun`` names a row."""
    labelled, notes, names, several = {}, [], labels.names, labels.kind == MULTI_LABEL
    for split, rows in tables.items():
        values = labels.values[split]
        indices = [i for i, value in enumerate(values) if value is not None]
        if not indices:
            notes.append(f"{split} has no labels and is left out")
            continue
        if len(indices) < len(rows):
            notes.append(f"{len(rows) - len(indices):,} {noun}s of {split} have no label and are left out")
            rows = rows.select(indices)
        inputs: Any = rows.select_columns(list(dict.fromkeys([*columns, *([] if group is None else [group])])))
        labelled[split] = inputs.add_column(label, [values[i] for i in indices])
    kinds = strata(labelled["train"][label][:], 2 * (1 + len({*SPLITS} - {*labelled}))) if several else None
    amounts = noun == "row" and names is not None and all(map(is_number, names))
    hint = "; if the labels are amounts, `kind=regression` learns them as such" if amounts else ""
    options: dict[str, Any] = {"classes": names is not None, "names": names, "kinds": kinds, "hint": hint}
    whole: Any = split_rows(labelled, label, group=group, **options)
    splits = {split: rows.select_columns([*columns, label]) for split, rows in whole.items()}
    notes += [*made_note(labelled, splits, group), *shared_rows(splits, labelled, label), *alike_note(names)]
    counts = {}
    for split, rows in splits.items():
        own = rows[label][:]
        ids = Counter(own) if not several else dict(enumerate(map(sum, zip(*own, strict=True))))
        counts[split] = {name: ids[i] for i, name in enumerate(names or ())}
        if split == "train" and several and (none := sum(not any(row) for row in own)):
            notes.append(f"{none:,} {noun}s of train have none of the labels")
    for split, by_name in counts.items():
        if absent := [name for name, count in by_name.items() if not count]:
            notes.append(f"{split} has no {noun} of {', '.join(map(repr, absent))}")
    return LabelledRows(labels.kind, labels.reason, names, counts, splits=splits, notes=tuple(notes))


def rows_to_score(
    source: RowSource,
    columns: Sequence[str],
    label: str | list[str],
    names: Sequence[str] | None,
    *,
    several: bool = False,
) -> tuple[Any, list[Any]]:
    """The rows of another table to score a model on (its test split, or else its first), and their labels: ids of the
    model's classes ``names``, or numbers if these are None; or, for ``several`` a row, 0 or 1 for each name. ValueError
    as `read_labels_for` and `read_several_for`, and for missing columns or rows.
    """
    rows = rows_to_evaluate(source.read(), source.name)
    if absent := [column for column in (*columns, *label_columns(label)) if column not in rows.column_names]:
        has = f"it has {_list_names(rows.column_names)}"
        raise ValueError(f"{source.name!r} has no column {absent[0]!r} ({has}){_first_line(source)}")

    def where(i: int) -> str:
        return f"row {i + 1} of {source.name!r}"

    cells = _cells(rows, label, where)
    if several:
        assert names is not None
        return rows, read_several_for(cells, names, where)
    return rows, read_labels_for(_with_points(cells, source.usual_decimal) if names is None else cells, names, where)


def label_columns(label: str | list[str]) -> tuple[str, ...]:
    """The columns of the labels."""
    return (label,) if isinstance(label, str) else tuple(label)


def _no_column(
    absent: Mapping[str, str],
    rows: hf.Dataset,
    of_train: Sequence[str],
    inputs: Sequence[str],
    where: str,
    source: RowSource,
) -> str:
    """The message about columns that a split does not have; absent: the options that name them, such as ``text``."""
    if alone := next((column for column, option in absent.items() if option == "label" and column in of_train), None):
        return (
            f"{where} has no column {alone!r}, without which it cannot be scored; add it, or move the file away and "
            "use lagwise predict for it"
        )
    columns, hints = rows.column_names, []
    for name, option in absent.items():
        near = difflib.get_close_matches(name, columns, n=1)
        hints.append(f"did you mean `{option}={near[0]}`?" if near else f"name the right one with `{option}=COLUMN`")
    flags = indicator_columns(rows, inputs) if "label" in absent.values() else []
    several = " and ".join(map(repr, flags[:2]))
    hint = f"; columns of 0 and 1, such as {several}, are labels with `kind={MULTI_LABEL}`" if len(flags) > 1 else ""
    return (
        f"{where} has no column {' and no column '.join(map(repr, absent))}; {', '.join(dict.fromkeys(hints))} "
        f"(columns: {_list_names(columns)}){chat_hint(columns) or _first_line(source)}{hint}"
    )


def _one_folder(rows: hf.Dataset, label: str, source: RowSource) -> str:
    """The message about files that are a class, or a row each, all of one class."""
    subject, columns = "files to train on are a row each", source.header  # their lines are samples
    if any(map(has_records, source.paths)):
        subject, columns = "rows to train on are of one file or folder", source.read()["train"].column_names
    named = f"; or name the column of labels with `label=COLUMN` (columns: {_list_names(columns)})" if columns else ""
    return (
        f"the {len(rows):,} {subject}, all of the class {rows[label][0]!r}, and classification needs two classes; put "
        f"those of each class into a folder of its own{named}"
    )


def _list_names(columns: Sequence[str]) -> str:
    """Return the names of columns, which in files without a header may be whole texts."""
    names = [f"{name:.{_LONG}}..." if len(name) > _LONG else name for name in columns]
    return ", ".join(names[:_MANY]) + (f" and {len(names) - _MANY:,} more" if len(names) > _MANY else "")


def _first_line(source: RowSource) -> str:
    advice = "if it is a row, put one above it; if a title, remove it"
    return f"; the first line of the file is taken for the header: {advice}" if source.header else ""


def _input_columns(
    name: str, rows: hf.Dataset, columns: tuple[str, ...], labels: Sequence[str], values: bool
) -> tuple[tuple[str, ...], list[str]]:
    """The requested columns, and a note of others that are not read; for ``text`` the only column of text, for
    ``input_values`` the only one beside the label. ValueError for a table of numbers and categories alone, which are no
    text."""
    others = [column for column in rows.column_names if column not in labels]
    if values and columns == (SERIES,) and SERIES not in others:
        return (others[0],) if len(others) == 1 else columns, []
    if columns != ("text",) or "text" in others or not {*labels} <= {*rows.column_names}:
        return columns, []
    head: Any = rows.with_format("arrow")[:_SAMPLE_ROWS]  # columns of Arrow, as a Dataset copies all features for each
    cells = {column: head.column(column).to_pylist() for column in others}
    kinds = {column: _column_kind(own) for column, own in cells.items()}
    texts = [column for column in others if kinds[column] != "number"]
    numbers = [c for c, own in cells.items() if kinds[c] == "number" and not count_up(list(map(str, own)))]
    if len(numbers) > 1 and None not in kinds.values() and "text" not in kinds.values():
        call = "HistGradientBoostingClassifier(categorical_features='from_dtype')"
        text = f"; to read {texts[0]!r} alone, name it with `text={texts[0]}`" if texts else ""
        raise ValueError(
            f"{name!r} is a table of numbers and categories ({_list_names(others)}), not of texts: use scikit-learn's "
            f"{call}.fit(table[columns], table[{labels[0]!r}]), with categories of pandas' type 'category'; or, if "
            f"each line is a series, the recipe series{text}"
        )
    if len(texts) != 1:
        return columns, []
    left = [column for column in others if column not in texts]
    note = [f"only column {texts[0]!r} is read as text, not {_list_names(left)}"] if left else []
    return (texts[0],), note


def _column_kind(cells: Sequence[Any]) -> str | None:
    """Say what the first cells of a column hold: ``number``, ``category``, ``text``, or None for anything else."""
    cells = [cell for cell in cells if cell is not None]
    if all(isinstance(cell, int | float | Decimal) for cell in cells):
        return "number"
    if not all(isinstance(cell, str) for cell in cells):
        return None
    few = len(cells) >= _MIN_CATEGORY_ROWS and len(set(cells)) <= len(cells) // 2
    return "number" if are_numbers(cells) else "category" if few else "text"


def _labels(
    tables: dict[str, hf.Dataset],
    label: str | list[str],
    kind: str,
    where: Callable[[str, int], str],
    in_folders: bool,
    usual: str | None,
) -> Labels:
    """The labels of a table; usual: the decimal separator."""
    cells = {split: _cells(rows, label, lambda i, s=split: where(s, i)) for split, rows in tables.items()}
    if isinstance(label, list):
        if kind not in ("auto", MULTI_LABEL):
            raise ValueError(f"`label` has {len(label)} columns, which are several labels per row, but `kind={kind}`")
        return read_several(cells, where, label, f"the columns {', '.join(label)} are labels")
    feature: Any = [rows.features[label] for rows in tables.values()][-1]
    order = getattr(getattr(feature, "feature", feature), "names", None) or ()  # the element's where labels are lists
    if kind == "auto" and (in_folders or (order and not hasattr(feature, "feature"))):
        reason = "the folders are the classes" if in_folders else "the data declare the classes"
        return replace(read_labels(cells, "classification", where, order), reason=reason)
    if kind == MULTI_LABEL or (kind == "auto" and has_lists(cells["train"])):
        return read_several(cells, where, order)
    if kind != "classification":
        cells = {split: _with_points(column, usual) for split, column in cells.items()}
    return read_labels(cells, kind, where, order)


def _with_points(cells: list[Any], usual: str | None) -> list[Any]:
    """Write numbers in text with decimal points, by the ``usual`` separator; other cells as they are."""
    return with_points(cells, usual) if all(isinstance(cell, str) for cell in cells) else cells


def _cells(rows: hf.Dataset, label: str | list[str], where: Callable[[int], str]) -> list[Any]:
    """The labels of each row, as the table has them; of several columns the names of those with 1."""
    if isinstance(label, str):
        return label_cells(rows, label)
    return named_columns({name: rows[name][:] for name in label}, where)


def label_cells(rows: hf.Dataset, label: str) -> list[Any]:
    """The values of a column of labels, classes by their names, and dates as text."""
    feature, cells = rows.features[label], rows[label][:]
    inner = getattr(feature, "feature", None)
    if isinstance(inner, hf.ClassLabel):
        return [None if cell is None else [inner.names[i] for i in cell] for cell in cells]
    if not isinstance(feature, hf.ClassLabel):
        return [float(v) if isinstance(v, Decimal) else str(v) if isinstance(v, date | time) else v for v in cells]
    return [None if i is None or i < 0 else feature.names[i] for i in cells]  # -1 where there is no label


def _check_inputs(
    tables: dict[str, hf.Dataset], columns: Sequence[str], values: bool, where: Callable[[str, int], str]
) -> tuple[int | None, bool]:
    """Refuse empty texts and faulty series; return the features of series, None for text, and whether any sample is
    missing."""
    features: int | None = None
    gaps = False
    for split, column, rows in ((split, column, rows) for split, rows in tables.items() for column in columns):
        if values:
            table: Any = rows.with_format("arrow")[:]
            for row in read_series(table.column(column), column, lambda i, s=split: where(s, i), features=features):
                features, gaps = row.shape[1], gaps or bool(np.isnan(row).any())
            continue
        cells = rows[column][:]
        other = next((i for i, v in enumerate(cells) if not isinstance(v, str | None)), None)
        if other is not None:
            raise ValueError(
                f"{column!r} of {where(split, other)} is {type(cells[other]).__name__}, not text; name another "
                "column with `text=COLUMN`, or set `inputs=values` for series of numbers"
            )
        empty = [i for i, v in enumerate(cells) if not v]
        if empty:
            raise ValueError(
                f"{len(empty)} of {len(cells)} rows have an empty {column!r}, the first is "
                f"{where(split, empty[0])}; fill them in or remove them"
            )
    return features, gaps
