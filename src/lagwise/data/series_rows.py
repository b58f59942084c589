"""Series as rows: recordings, and tables whose lines are series."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import KW_ONLY, dataclass
from functools import cached_property
from itertools import chain
from pathlib import Path
from typing import Any

from lagwise.data.reading import read_whole
from lagwise.data.row_files import file_kind, read_columns, read_table
from lagwise.data.rows import RowSource, open_rows
from lagwise.data.series_files import check_sounds, read_sound, series_table


@dataclass(frozen=True)
class SeriesSource(RowSource):
    """Rows whose .csv and .tsv files are read by `series_table`; see `open_series`."""

    _: KW_ONLY
    label: str
    per_sample: bool = False
    features: Sequence[str] | None = None
    lines: bool = False
    rate: int | None = None

    def found(self) -> dict[str, Any]:
        """The options of `open_series` that read other files as these: ``rate`` if there are sounds, and ``lines`` or
        ``features`` if there are tables. ValueError for options that are given without such files."""
        options: dict[str, Any] = {}
        sound = next((p for s in self.split_names for p in self.files.get(s, ()) if file_kind(p) == ".wav"), None)
        if sound is not None:
            options["rate"] = read_sound(read_whole(sound), sound)[0]
        table = self._first_table
        if table is None and (self.features or self.lines):
            raise ValueError(f"task.features and task.lines are for .csv and .tsv files, but {self.name!r} has none")
        if table is not None:
            options |= {"lines": True} if self._has_lines(table) else {"features": list(self.features or self._first)}
        return options

    def fingerprint(self) -> str:
        whole = super().fingerprint()
        if self._first_table is None or not self.features or list(self.features) == self._first:
            return whole
        return hashlib.sha256(f"{self.features}:{whole}".encode()).hexdigest()

    def _is_table(self, path: Path) -> bool:
        return file_kind(path) in (".csv", ".tsv")

    def _has_lines(self, path: Path) -> bool:
        """Whether every line of a table is a series."""
        return not self.per_sample and (self.lines or self.label in read_columns(path))

    def _folder_column(self, path: Path) -> str | None:
        if not self._is_table(path):
            return super()._folder_column(path)
        return None if self.lines or self.label in read_columns(path) else self.label

    def _check_sounds(self) -> None:
        check_sounds(self.files, self.rate)

    def _columns_of(self, path: Path) -> tuple[str, ...]:
        return tuple(self._table(path).column_names) if self._is_table(path) else super()._columns_of(path)

    def _table(self, path: Path, columns: Sequence[str] | None = None) -> Any:
        if not self._is_table(path):
            return super()._table(path, columns)
        features = self.features or self._default_features(path)
        return series_table(read_table(path), path, self.label, features, columns, lines=self._has_lines(path))

    def _default_features(self, path: Path) -> list[str]:
        """Those of the first table, in its order; of lines, which may be series of different lengths, their own."""
        own = self._features_of(path)
        if set(own) == set(self._first):
            return self._first
        if self._has_lines(path):
            return own
        raise ValueError(
            f"{path} has other columns ({', '.join(own)}) than {self._first_table} ({', '.join(self._first)}); choose "
            "those that all recordings have with task.features=[NAME,NAME]"
        )

    def _features_of(self, path: Path) -> list[str]:
        return [name for name in read_columns(path) if name != self.label]

    @cached_property
    def _first_table(self) -> Path | None:
        return next(filter(self._is_table, chain(*self.files.values())), None)

    @cached_property
    def _first(self) -> list[str]:
        """The features of the first table."""
        assert self._first_table is not None
        return self._features_of(self._first_table)


def open_series(
    name: str,
    label: str,
    *,
    per_sample: bool = False,
    features: Sequence[str] | None = None,
    lines: bool = False,
    rate: int | None = None,
) -> SeriesSource:
    """Find series by name, as `open_rows` finds rows.

    A .csv or .tsv file with a column ``label`` has a series on every line, or with ``per_sample`` a sample. Without
    that column it is a recording with a sample on every line, and the name of its folder is its class.

    features: columns of the numbers, in this order; by default all but ``label``, in the order of the first file.
    lines: every line is a series even without a column ``label``. rate: the sampling rate that sound files must have,
    in Hz. Errors as `open_rows`.
    """
    found = open_rows(name)
    return SeriesSource(
        found.name,
        found.files,
        found.dataset,
        label=label,
        per_sample=per_sample,
        features=features,
        lines=lines,
        rate=rate,
    )
