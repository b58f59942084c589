"""Tables of series over time."""

from __future__ import annotations

import lzma
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest

from lagwise.forecasting import read_series
from lagwise.forecasting.tables import table_columns


def written(folder: Path, frame: pd.DataFrame, name: str = "data.csv") -> Path:
    path = folder / name
    if path.suffix == ".parquet":
        frame.to_parquet(path)
    else:
        frame.to_csv(path, index=False)
    return path


def hours(rows: int = 20, **columns: Any) -> pd.DataFrame:
    times = pd.date_range("2024-03-01", periods=rows, freq="h")
    return pd.DataFrame({"date": times, "load": np.arange(rows) + 0.5, **columns})


def test_rows_are_sorted_and_missing_times_become_missing_values(tmp_path: Path) -> None:
    frame = hours(price=1.0).drop(index=[5, 6]).sample(frac=1, random_state=0)
    table = read_series(written(tmp_path, frame), "date")
    assert table.frame.index.tolist() == hours()["date"].tolist()
    assert table.frame["load"].isna().sum() == 2
    assert [note.split(";")[0] for note in table.notes] == ["4 of 40 values are missing"]


def test_columns_are_chosen(tmp_path: Path) -> None:
    path = written(tmp_path, hours(place="here", price=2.0))
    assert list(read_series(path, columns=["price"]).frame) == ["price"]
    with pytest.raises(ValueError, match="column 'place' has 'here' in row 1, which is not a number"):
        read_series(path)
    with pytest.raises(ValueError, match="did you mean 'price'"):
        read_series(path, columns=["prise"])


def test_tables_that_pandas_wrote_with_their_index(tmp_path: Path) -> None:
    frame = hours()
    frame.set_index("date").rename_axis(None).to_csv(tmp_path / "times.csv")
    assert read_series(tmp_path / "times.csv").frame.index.name == "time"
    frame.to_csv(tmp_path / "numbers.csv")
    assert list(read_series(tmp_path / "numbers.csv", "date").frame) == ["load"]
    frame.set_index("date").to_parquet(tmp_path / "times.parquet")
    assert list(read_series(tmp_path / "times.parquet").frame) == ["load"]
    frame[["load"]].assign(more=1.5).to_csv(tmp_path / "bare.csv", header=False)
    with pytest.raises(ValueError, match=r"the first line of .* has numbers .*; it must have names of columns"):
        read_series(tmp_path / "bare.csv")


def changed(frame: pd.DataFrame, row: int, column: str, value: Any) -> pd.DataFrame:
    frame = frame.astype({column: object})
    frame.loc[row, column] = value
    return frame


@pytest.mark.parametrize(
    ("frame", "message"),
    [
        (changed(hours(), 7, "load", "n/k"), "column 'load' has 'n/k' in row 8, which is not a number"),
        (changed(hours(), 7, "load", np.inf), "column 'load' has 'inf' in row 8"),
        (changed(hours(), 7, "date", "soon"), "column 'date' has 'soon' in row 8, which is not read as a time"),
        (changed(hours(), 7, "date", hours()["date"][3]), "has 2024-03-01 03:00:00 more than once"),
        (changed(hours(), 7, "date", pd.Timestamp("2024-03-01 07:20")), "irregular: 2024-03-01 07:20:00 follows"),
        (changed(hours(), 19, "date", pd.Timestamp("2031-03-01")), "irregular: 2031-03-01 00:00:00 follows"),
        (hours().assign(load=np.nan), "column 'load' has no value at all"),
        (hours()[["date"]], "no rows, or no column besides the times"),
        (hours(0), "has no rows"),
        (hours(2), "has 2 different times; at least 3 are needed"),
    ],
)
def test_invalid_tables(tmp_path: Path, frame: pd.DataFrame, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        read_series(written(tmp_path, frame))


def test_invalid_files(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="no file"):
        read_series(tmp_path / "nothing.csv")
    with pytest.raises(FileNotFoundError, match="give the path of a table"):
        read_series(tmp_path)
    (tmp_path / "empty.csv").touch()
    (tmp_path / "false.parquet").write_bytes(b"no table")
    for name, message in (("empty.csv", "is empty"), ("false.parquet", "not a parquet")):
        with pytest.raises(ValueError, match=message):
            read_series(tmp_path / name)
    with pytest.raises(ValueError, match="did you mean 'date'"):
        read_series(written(tmp_path, hours()), "data")


def test_a_second_column_of_times_is_no_series(tmp_path: Path) -> None:
    path = written(tmp_path, hours(until=hours()["date"] + pd.Timedelta(hours=1)), "data.parquet")
    with pytest.raises(ValueError, match="column 'until' has times, not numbers"):
        read_series(path)
    assert list(read_series(path, columns=["load"]).frame) == ["load"]


@pytest.mark.parametrize(
    "name",
    ["data.csv", "data.CSV", "data.csv.xz", "data.tsv", "data.txt", "data.jsonl", "data.PARQUET", "data.parquet.xz"],
)
def test_reading_restores_what_was_written(tmp_path: Path, name: str) -> None:
    path = tmp_path / name
    if name.endswith("jsonl"):
        hours().to_json(path, orient="records", lines=True, date_format="iso")
    elif name.endswith("parquet.xz"):
        path.write_bytes(lzma.compress(hours().to_parquet()))
    elif name.endswith("PARQUET"):
        hours().to_parquet(path)
    else:
        hours().to_csv(path, index=False, sep="\t" if name.endswith("tsv") else ",")
    assert table_columns(path) == ["date", "load"]
    table = read_series(path)
    assert table.frame["load"].tolist() == hours()["load"].tolist()
    assert list(table.next_times(2)) == list(pd.date_range("2024-03-01 20:00", periods=2, freq="h"))
    assert table.notes == ()


ROWS = "".join(f"2024-01-{i:02d},{i % 5},{i % 3}\n" for i in range(1, 29))


@pytest.mark.parametrize(
    ("text", "noted"),
    [
        ("date,a,b\n" + ROWS + ",,\n,,\n", ()),
        ("Sales 2024,,\ndate,a,b\n" + ROWS, ("'Sales 2024,,' stands above the header",)),
        ("Sales 2024\n\ndate,a,b\n" + ROWS, ("'Sales 2024' stands above the header",)),
        ("date,a,b\n,MW,EUR\n" + ROWS, ("',MW,EUR' below the header",)),
        ("Price,a,b\nTicker,X,X\ndate,,\n" + ROWS, ("'Ticker,X,X' below", "'date,,' below")),
        ("sep=;\ndate;a;b\n" + ROWS.replace(",", ";"), ()),
        ('"sep=,"\r\ndate,a,b\r\n' + ROWS.replace("\n", "\r\n"), ()),
        ("date,a,b,\n" + ROWS.replace("\n", ",\n"), ()),
        ("date|a|b\n" + ROWS.replace(",", "|"), ()),
        ("\ufeffdate,a,b\r" + ROWS.replace("\n", "\r"), ()),
    ],
)
def test_lines_that_are_no_rows(tmp_path: Path, text: str, noted: tuple[str, ...]) -> None:
    (tmp_path / "data.csv").write_text(text, newline="")
    table = read_series(tmp_path / "data.csv")
    assert list(table.frame) == ["a", "b"]
    assert table.frame.index.name == "date"
    assert table.frame["a"].tolist() == [i % 5 for i in range(1, 29)]
    assert len(table.notes) == len(noted)
    for note, words in zip(table.notes, noted, strict=True):
        assert words in note
    assert table_columns(tmp_path / "data.csv") in (["date", "a", "b"], ["date", "a", "b", "Unnamed: 3"])


@pytest.mark.parametrize("line", ["Total,9,9", ",9,9", "Source: office of 2024,,"])
def test_lines_that_are_no_rows_are_named(tmp_path: Path, line: str) -> None:
    (tmp_path / "data.csv").write_text(f"date,a,b\n{ROWS}{line}\n")
    with pytest.raises(ValueError, match=r"in row 29, which is not read as a time.*correct or remove the row"):
        read_series(tmp_path / "data.csv")


@pytest.mark.parametrize(
    "text",
    [
        "Date,Time,x\n" + "".join(f"2024-01-{1 + h // 24:02d},{h % 24:02d}:00,{h}\n" for h in range(100)),
        "year,month,x\n" + "".join(f"{2020 + m // 12},{m % 12 + 1},{m}\n" for m in range(40)),
        "day,shop,good,x\n" + "".join(f"2024-01-{d:02d},a,{g},{d}\n" for g in "tu" for d in range(1, 29)),
    ],
)
def test_times_and_series_in_several_columns_are_refused(tmp_path: Path, text: str) -> None:
    (tmp_path / "data.csv").write_text(text)
    with pytest.raises(ValueError, match=r"which is not a number; .*`id`.*|more than once; .*`id`, join date and time"):
        read_series(tmp_path / "data.csv")


@pytest.mark.parametrize("start", [0, 1])
@pytest.mark.parametrize("name", ["", "rownames"])
def test_a_first_column_that_counts_the_rows_is_no_time(tmp_path: Path, start: int, name: str) -> None:
    """As pandas and R write tables by default."""
    frame = hours().reset_index(drop=True)
    frame.index += start
    (tmp_path / "data.csv").write_text(frame.to_csv(index_label=name))
    table = read_series(tmp_path / "data.csv")
    assert list(table.frame.index) == list(pd.to_datetime(frame["date"]))
    assert list(table.frame) == ["load"]


def test_rows_without_any_value_say_nothing_about_the_grid(tmp_path: Path) -> None:
    """Every second day, weekends that are listed but empty, and days to forecast that are listed at the end."""
    days = pd.date_range("2024-01-01", periods=84, freq="D")
    for is_open, following in (
        (np.arange(84) % 2 == 0, "2024-03-25"),
        (days.dayofweek < 5, "2024-03-25"),
        (np.arange(84) < 80, "2024-03-21"),
    ):
        frame = pd.DataFrame({"day": days, "x": np.where(is_open, np.arange(84.0), np.nan)})
        table = read_series(written(tmp_path, frame))
        assert table.frame["x"].dropna().tolist() == np.flatnonzero(is_open).tolist()
        assert table.next_times(1)[0] == pd.Timestamp(following)
        assert table.notes == ()
        assert not table.frame["x"].isna().any()


def test_a_frame_is_read_as_its_file_is(tmp_path: Path) -> None:
    frame = hours(price=1.5)
    expected = read_series(written(tmp_path, frame)).frame
    table = pa.Table.from_pandas(frame, preserve_index=False)
    for given in (frame, frame.set_index("date"), frame.sample(frac=1), table):
        pd.testing.assert_frame_equal(read_series(given).frame, expected, check_index_type=False, check_freq=False)
    pd.testing.assert_frame_equal(read_series(table.to_reader()).frame, expected, check_freq=False)
    with pytest.raises(ValueError, match="the table has no rows"):
        read_series(frame[:0])


@pytest.mark.parametrize(
    ("cells", "options", "values"),
    [
        (["1.500", "2.250", "3.125"], {}, [1.5, 2.25, 3.125]),
        (["1.500", "2.250", "3.125"], {"decimal": ","}, [1500, 2250, 3125]),
        (["1.500", "2.250", "3.125"], {"thousands": "."}, [1500, 2250, 3125]),
        (["1,500", "2,250", "3,125"], {"thousands": ","}, [1500, 2250, 3125]),
        (["1,500", "2,250", "3,125"], {"decimal": ","}, [1.5, 2.25, 3.125]),
        (["1 500", "2 250,5", "3"], {"decimal": ",", "thousands": " "}, [1500, 2250.5, 3]),
    ],
)
def test_options_say_how_numbers_are_written(cells: list[Any], options: dict[str, Any], values: list[float]) -> None:
    frame = pd.DataFrame({"day": ["01/02/2024", "02/02/2024", "03/02/2024"], "x": cells})
    np.testing.assert_array_equal(read_series(frame, date_order="day", **options).frame["x"], values)


def test_a_local_hour_that_occurs_twice_needs_its_offset() -> None:
    times = pd.date_range("2024-10-26", periods=60, freq="h", tz="Europe/Berlin")
    with pytest.raises(ValueError, match=r"2024-10-27 02:00:00 more than once.*UTC offset if the clock was changed"):
        read_series(pd.DataFrame({"time": times.tz_localize(None), "x": np.arange(60.0)}))
    table = read_series(pd.DataFrame({"time": [at.isoformat() for at in times], "x": np.arange(60.0)}))
    assert table.frame["x"].tolist() == list(range(60))
