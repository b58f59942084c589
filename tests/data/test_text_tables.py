"""Tables in text files: numbers, encodings, separators and lines that are no rows."""

from __future__ import annotations

import bz2
import gzip
import io
import lzma
import zipfile
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from lagwise.data import open_rows, open_series, open_source
from lagwise.data.reading import read_head, read_text_table
from lagwise.data.text_tables import TextTable, decimal_separator, to_floats, with_points
from lagwise.forecasting import read_series


def read(texts: list[str], usual: str | None) -> list[float]:
    values, wrong = to_floats(texts, decimal_separator([texts], usual))
    assert wrong is None
    return values.tolist()


@pytest.mark.parametrize(
    ("texts", "usual", "numbers"),
    [
        (["987", "1.000", "1.013"], ",", [987, 1000, 1013]),
        (["987", "1,000", "1,013"], ".", [987, 1000, 1013]),
        (["987", "1,000", "1,013"], ",", [987, 1000, 1013]),
        (["1.013,5", "1.014", "3"], ",", [1013.5, 1014, 3]),
        (["1,013.5", "1,014", "3"], ".", [1013.5, 1014, 3]),
        (["1.234.567", "1.013"], ",", [1234567, 1013]),
        (["0.5", "1.013", "2"], ",", [0.5, 1.013, 2]),
        (["0,5", "1,013", "2"], ",", [0.5, 1.013, 2]),
        (["1.013", "1.250"], ".", [1.013, 1.25]),
        (["1,013", "1,250"], ",", [1.013, 1.25]),
        (["1 013,5", "7\u00a0000", "12"], ",", [1013.5, 7000, 12]),
        (["1'013", "987"], ".", [1013, 987]),
        (["987", "1,013"], None, [987, 1013]),
        (["1,5", "1.013,25", "NA"], None, [1.5, 1013.25, None]),
        (["\u22121.5", "-2", "+3", "1e5", "2.5E-3"], ".", [-1.5, -2, 3, 1e5, 2.5e-3]),
    ],
)
def test_separators(texts: list[str], usual: str, numbers: list[float | None]) -> None:
    np.testing.assert_array_equal(read(texts, usual), np.array(numbers, dtype=float))


def test_numbers_that_may_be_read_in_two_ways_are_refused() -> None:
    with pytest.raises(ValueError, match=r"such as '1.013' may be thousands or have three decimals"):
        read(["1.013", "1.250"], ",")
    with pytest.raises(ValueError, match=r"such as '1.55' and '1,5'"):
        read(["1,5", "1.55"], ",")
    with pytest.raises(ValueError, match=r"such as '2,853' may be thousands"):
        read(["6", "2,853"], None)  # between tabs
    assert to_floats(["1.5", "1,2,3", "x"], ".")[1] == 1


def test_text_is_read_to_the_last_digit() -> None:
    values = np.random.default_rng(0).normal(size=200) * 10.0 ** np.arange(-100, 100)
    assert read([repr(float(value)) for value in values], ".") == values.tolist()


def test_cells_are_rewritten_only_where_all_are_numbers() -> None:
    assert with_points(["1,5", "", "1.013,25"], ",") == ["1.5", "", "1013.25"]
    for cells in (["1,5", "a"], ["1.5", "2"], ["1,2,3", "2,3,4"], []):
        assert with_points(cells, ",") is cells
    assert with_points(["1,5"], ".") == ["1,5"]


ROWS = "text,label\ngröße,a\nnaïve,b\n"
COLUMNS = {"text": ["größe", "naïve"], "label": ["a", "b"]}


def write(path: Path, content: str | bytes) -> Path:
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return path


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (ROWS.encode("latin1"), "is not UTF-8.*iconv -f latin1 -t utf-8 .*a.csv > .*utf8-a.csv"),
        ("“größe”".encode("cp1252"), "iconv -f cp1252"),
        ("text,label\nplain,a\n".encode("utf-16le"), "seems UTF-16.*iconv -f utf-16le"),
        ("text,label\nplain,a\n".encode("utf-16be"), "seems UTF-16.*iconv -f utf-16be"),
        (ROWS.encode("utf-16")[:-1], "not valid UTF-16"),
        (b"PK\x03\x04" + bytes(99), r"is a spreadsheet \(\.xlsx, \.ods\).*save the sheet as \.csv"),
        (b"\xd0\xcf\x11\xe0" + bytes(99), r"is a spreadsheet \(\.xls\)"),
        (gzip.compress(ROWS.encode(), mtime=0), r"is compressed; its name must end in \.gz"),
    ],
)
def test_other_files_are_named_with_advice(tmp_path: Path, data: bytes, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        read_text_table(write(tmp_path / "a.csv", data))


def zipped(data: bytes, *names: str) -> bytes:
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w") as archive:
        for name in names or ("__MACOSX/._a.csv", "a.csv"):
            archive.writestr(name, data)
    return file.getvalue()


def packed_zst(data: bytes) -> bytes:
    return pa.compress(data, "zstd", asbytes=True)


PACKED = [(".gz", gzip.compress), (".bz2", bz2.compress), (".zst", packed_zst), (".zip", zipped)]


@pytest.mark.parametrize(("suffix", "pack"), PACKED)
def test_compressed_files(tmp_path: Path, suffix: str, pack) -> None:
    assert read_text_table(write(tmp_path / f"a.csv{suffix}", pack(ROWS.encode()))).columns == COLUMNS
    for damaged in (pack(ROWS.encode() * 99)[:-9], b"something else"):
        with pytest.raises(ValueError, match=f"is truncated or not a {suffix} file"):
            read_text_table(write(tmp_path / f"b.csv{suffix}", damaged))


@pytest.mark.parametrize("first", ["sep=;\n", '"sep=;"\r\n', "sep=;;\n"])
def test_a_line_for_excel_names_the_separator(tmp_path: Path, first: str) -> None:
    path = write(tmp_path / "a.csv", first + "a, b;y\n1;2\nx;\n")
    assert read_text_table(path).columns == {"a, b": ["1", "x"], "y": ["2", ""]}
    with pytest.raises(ValueError, match=r"line 4: 'a, b' is 'x', not a number"):
        read_text_table(path).numbers("a, b")


def test_lines_and_separators_are_kept(tmp_path: Path) -> None:
    table = read_text_table(write(tmp_path / "a.csv", ROWS.replace(",", "|").encode("utf-32")))
    assert (table.columns, table.separator, table.lines) == (COLUMNS, "|", [2, 3])


def test_separators_in_quotes_do_not_count(tmp_path: Path) -> None:
    assert read_text_table(write(tmp_path / "a.csv", '"a, b, c";y\n1;2\n')).names == ["a, b, c", "y"]


def test_lines_of_separators_at_the_end_are_no_rows(tmp_path: Path) -> None:
    table = read_text_table(write(tmp_path / "a.csv", "x,y\n1,2\n,\n3,4\n,\n , \n"))
    assert table.columns == {"x": ["1", "", "3"], "y": ["2", "", "4"]}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("Sales of 2024\nx,y\n1,2\n3,4\n", "line 2: 2 fields, but the header has 1.*if line 1 is a title"),
        ("sep=,\nSales\nx,y\n1,2\n3,4\n", "line 3: 2 fields, but the header has 1.*if line 2 is a title"),
        ("x,y\na,1,2\nb,3,4\n", "line 2: 3 fields.*the first field of each is a name of its row, as R writes"),
        ("x,y\n1,2\n3,4\nTotal\n", "line 4: 1 fields.*if it is no row, such as a total, remove it"),
        ("1.5,1.5,2\n1,2,3\n", r"the first line of .*a\.csv has numbers .*; it must have names of columns"),
    ],
)
def test_lines_that_are_no_rows_are_named(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        read_text_table(write(tmp_path / "a.csv", text))


def test_units_and_totals_are_named(tmp_path: Path) -> None:
    table = read_text_table(write(tmp_path / "a.csv", "t,x,y\ns,1,2\n3,mV,4\n5,6,Sum\n"))
    for name, line, advised in (("t", 2, True), ("x", 3, False), ("y", 4, True)):
        with pytest.raises(ValueError, match=f"line {line}: {name!r} is '.*', not a number") as error:
            table.numbers(name)
        assert ("no row, such as units or a total, remove it" in str(error.value)) == advised


@pytest.mark.parametrize("cell", ["1_000", "five", "1.2.3", "2024-01-01", "12:30"])
def test_text_is_no_number(cell: str) -> None:
    with pytest.raises(ValueError, match=r"a\.csv, line 3: 'x' is '.*', not a number"):
        TextTable(Path("a.csv"), {"x": ["1", cell]}, [2, 3], ",").numbers("x")


def test_the_head_of_a_long_file(tmp_path: Path) -> None:
    text = "x,y\n" + "1,2\n" * 200_000
    path = write(tmp_path / "a.csv", text + "3\n")
    assert read_head(path).columns == {"x": [], "y": []}
    assert read_head(path, 3).columns == {"x": ["1"] * 3, "y": ["2"] * 3}
    path = write(tmp_path / "b.csv", ",".join(f"column {i}" for i in range(50_000)) + "\n")
    assert len(read_head(path).names) == 50_000
    path = write(tmp_path / "c.tsv", text.replace(",", "\t").encode("utf-16"))
    assert read_head(path, 1).columns == {"x": ["1"], "y": ["2"]}


def test_an_archive_of_several_files_is_named(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"a\.csv\.zip holds 2 files; unpack it"):
        read_text_table(write(tmp_path / "a.csv.zip", zipped(b"", "a.csv", "b.csv")))


@pytest.mark.parametrize("sheet", ["a.xlsx", "a.ods", "a.xls", "a.numbers"])
def test_every_reader_refuses_a_spreadsheet_in_the_same_words(tmp_path: Path, sheet: str) -> None:
    path = write(tmp_path / sheet, b"PK\3\4")
    for read in (open_rows, open_source, read_series, lambda name: open_series(name, "label")):
        with pytest.raises(ValueError, match=r"is a spreadsheet; save the sheet as \.csv in UTF-8 and give that file"):
            read(str(path))


VALUES = np.random.default_rng(0).uniform(100, 3000, (30, 2)).round(1)


def exported(mark: str, point: str, thousands: str = "") -> str:
    """A table with a column of times, two of numbers and one of labels, as a program of some country writes it."""
    lines = [("date", "a", "b", "label")]
    for i, row in enumerate(VALUES):
        numbers = [f"{x:,.1f}".replace(",", "_").replace(".", point).replace("_", thousands) for x in row]
        lines.append((f"2024-01-{i + 1:02d}", *numbers, "xy"[i % 2]))
    return "".join(mark.join(line) + "\n" for line in lines)


@pytest.mark.parametrize(
    ("name", "data"),
    [
        ("plain.csv", exported(",", ".").encode()),
        ("european.csv", exported(";", ",").encode()),
        ("thousands.csv", exported(";", ",", ".").encode()),
        ("swiss.csv", exported(";", ".", "\u2019").encode()),
        ("semicolons.csv", exported(";", ".").encode()),
        ("tabs.tsv", exported("\t", ",").encode()),
        ("bars.csv", exported("|", ".").encode()),
        ("names.csv", exported(";", ",").replace("a;b", "a;b, EUR").encode()),
        ("excel.csv", ('"sep=;"\r\n' + exported(";", ",").replace("\n", "\r\n")).encode()),
        ("mac.csv", exported(",", ".").replace("\n", "\r").encode()),
        ("wide.csv", exported(";", ",").encode("utf-16")),
        ("marked.csv", exported(",", ".").encode("utf-8-sig")),
        ("trailing.csv", exported(",", ".").replace("\n", ",\n").encode()),
        ("blank.csv", (exported(",", ".") + ",,,\n\n").encode()),
        ("packed.csv.xz", lzma.compress(exported(",", ".").encode())),
        ("packed.csv.zst", packed_zst(exported(";", ",").encode())),
        ("packed.csv.zip", zipped(exported(";", ",").encode())),
    ],
    ids=lambda value: value if isinstance(value, str) else "",  # a .zip holds the time
)
def test_every_reader_reads_a_table_alike(tmp_path: Path, name: str, data: bytes) -> None:
    path = str(write(tmp_path / name, data))
    texts = open_rows(path).read()["train"]
    features = texts.column_names[1:3]
    assert features in (["a", "b"], ["a", "b, EUR"])
    assert texts.column_names == ["date", *features, "label"]
    assert texts["date"][0] == "2024-01-01"
    assert texts["label"][:] == ["x", "y"] * 15
    lines = open_series(path, "label", features=features).read()["train"]
    np.testing.assert_array_equal(lines["input_values"][:], VALUES.astype(np.float32))
    samples = open_series(path, "label", features=features, per_sample=True).read()["train"]
    np.testing.assert_array_equal(samples["input_values"][0], VALUES.astype(np.float32))
    series = read_series(path, columns=features)
    assert str(series.frame.index[-1]) == "2024-01-30 00:00:00"
    np.testing.assert_array_equal(series.frame, VALUES)


def test_cells_are_read_as_they_are_written(tmp_path: Path) -> None:
    table = "text;score;name;codes\nfine, so;1,5;1,5 m;1,2,3\nbad;-2;x;4,5,6\nnone;;y;\n"
    rows = open_rows(str(write(tmp_path / "a.csv", table))).read()["train"]
    assert rows["score"][:] == ["1,5", "-2", ""]
    assert rows["name"][:] == ["1,5 m", "x", "y"]
    assert rows["text"][0] == "fine, so"
    assert rows["codes"][:] == ["1,2,3", "4,5,6", ""]


@pytest.mark.parametrize(
    ("cells", "steps"),
    [
        (["0,5", "2", "3,5"], [1.5, 1.5]),
        (["2024-05-31 23:59:00", "2024-06-01", "2024-06-01T00:00:30Z"], None),
        (["2024-05-31 23:59:00", "2024-06-01", "2024-06-01T00:00:30"], [60, 30]),
        (["2024-05-31T23:59:00+02:00", "2024-05-31T22:59:30+00:00"], [3630]),
        (["01.03.2024 12:00", "01.03.2024 12:01"], [60]),
        (["31.01.2024", "1.2.2024", "3.2.2024"], [86400, 2 * 86400]),
        (["1/2/2024", "2/1/2024"], [30 * 86400]),
        (["1/2/2024", "2/3/2024"], None),
        (["3 May 2024 8:00 pm", "3 May 2024 8:00:05 pm"], [5]),
        (["2024-05-31", "later"], None),
    ],
)
def test_times_of_samples(cells: list[str], steps: list[float] | None) -> None:
    table = TextTable(Path("a.csv"), {"t": cells}, [*range(2, 2 + len(cells))], ";")
    if steps is None:
        with pytest.raises(ValueError, match=r"a\.csv.* `time` names a column of numbers, or of dates such as"):
            table.times("t")
    else:
        np.testing.assert_allclose(np.diff(table.times("t")), steps)
