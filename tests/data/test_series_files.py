"""Audio files and tables of samples as rows of series."""

from __future__ import annotations

import struct
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from datasets import Dataset
from scipy.io import wavfile

from lagwise.data import open_rows, open_series, prepare_labelled
from lagwise.data.labelled_rows import read_labelled
from lagwise.data.series_files import read_sound

RATE = 8000


def wave(length: int = 50, channels: int = 1) -> np.ndarray:
    return np.sin(np.arange(length * channels).reshape(length, channels) / 7) * 0.9


def write(path: Path, samples: np.ndarray, rate: int = RATE) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    wavfile.write(path, rate, samples)
    return path


def classes(folder: Path, **rates: int) -> Path:
    """Folders of two classes with two sounds each."""
    for name, rate in rates.items():
        for i in range(2):
            write(folder / name / f"{i}.wav", (wave(40 + i) * 32767).astype(np.int16), rate)
    return folder


@pytest.mark.parametrize("channels", [1, 2])
@pytest.mark.parametrize(
    ("convert", "step"),
    [
        (lambda x: (x * 127 + 128).round().astype(np.uint8), 1 / 100),
        (lambda x: (x * 32767).round().astype(np.int16), 1 / 20000),
        (lambda x: (x * (2**31 - 1)).astype(np.int32), 1e-6),
        (lambda x: x.astype(np.float32), 1e-6),
        (lambda x: x, 1e-6),
    ],
    ids=["8 bits", "16 bits", "32 bits", "float32", "float64"],
)
def test_every_sample_format_gives_the_same_sound(convert: Any, step: float, channels: int, tmp_path: Path) -> None:
    path = write(tmp_path / "a.wav", convert(wave(channels=channels)))
    rate, samples = read_sound(path.read_bytes(), path)
    assert (rate, samples.dtype, samples.shape) == (RATE, np.float32, (50, channels))
    np.testing.assert_allclose(samples, wave(channels=channels), atol=step)


@pytest.mark.parametrize("unknown", [0, 0x7FFFFFFF, 0xFFFFFFFF, 0x7FFFF024])
@pytest.mark.parametrize("chunks", [b"", b"LIST" + struct.pack("<I", 5) + b"INFOx\0"])
def test_headers_that_do_not_know_their_sizes(unknown: int, chunks: bytes) -> None:
    """As of a pipe, or of a recorder that was switched off. The last sample may be incomplete."""
    whole = (wave(channels=2) * 32767).astype("<i2")
    head = struct.pack("<4sI4s4sIHHIIHH", b"RIFF", unknown, b"WAVE", b"fmt ", 16, 1, 2, RATE, RATE * 4, 4, 16) + chunks
    for tail in (b"", b"\1", b"\1\2\3"):
        data = head + struct.pack("<4sI", b"data", unknown) + whole.tobytes() + tail
        rate, samples = read_sound(data, Path("a.wav"))
        assert rate == RATE
        np.testing.assert_allclose(samples, whole / 32768, atol=1e-7)
    known = head + struct.pack("<4sI", b"data", whole.nbytes) + whole.tobytes()
    with pytest.raises(ValueError, match=r"a\.wav is not a complete \.wav file"):
        read_sound(known[:-8], Path("a.wav"))
    np.testing.assert_allclose(read_sound(known, Path("a.wav"))[1], whole / 32768, atol=1e-7)
    with pytest.raises(ValueError, match=r"a\.wav (has no samples|is not a complete)"):
        read_sound(head + struct.pack("<4sI", b"data", unknown), Path("a.wav"))
    with pytest.raises(ValueError, match=r"a\.wav is not a complete \.wav file") as error:
        read_sound(head[:12], Path("a.wav"))
    assert "variable" not in str(error.value)


def test_one_folder_per_class_is_a_table(tmp_path: Path) -> None:
    rows = open_rows(str(classes(tmp_path, yes=RATE, no=RATE))).read()["train"]
    assert rows["label"][:] == ["no", "no", "yes", "yes"]
    assert rows["file"][:] == ["no/0.wav", "no/1.wav", "yes/0.wav", "yes/1.wav"]
    (alone,) = open_rows(str(tmp_path / "yes" / "1.wav")).read()["train"]["file"]
    assert alone == "1.wav"
    assert rows["sampling_rate"][:] == [RATE] * 4
    np.testing.assert_allclose(np.asarray(rows[1]["input_values"]), wave(41), atol=1e-4)


def test_faulty_sounds_are_named(tmp_path: Path) -> None:
    folder = classes(tmp_path, yes=RATE, no=RATE)
    path = folder / "yes" / "1.wav"
    good = path.read_bytes()
    for data, message in (
        (good[:-20], "1.wav is not a complete .wav file"),
        (good[:30], "1.wav is not a complete .wav file"),
        (b"ID3" + good, "1.wav is not a complete .wav file"),
    ):
        path.write_bytes(data)
        with pytest.raises(ValueError, match=message):
            open_rows(str(folder)).read()
    write(path, np.zeros(0, np.int16))
    with pytest.raises(ValueError, match=r"1\.wav (has no samples|is not a complete)"):
        open_rows(str(folder)).read()
    path.write_bytes(b"")
    with pytest.raises(ValueError, match="is empty"):
        open_rows(str(folder))
    write(path, (wave(channels=2) * 32767).astype(np.int16))
    with pytest.raises(ValueError, match=r"1\.wav has 2 channels, .*0\.wav has 1; give .* -ac 1 mono-1\.wav"):
        open_rows(str(folder)).read()


def test_different_sampling_rates_are_refused(tmp_path: Path) -> None:
    folder = classes(tmp_path, a=RATE, b=16000)
    with pytest.raises(ValueError, match=r"b/0\.wav has a sampling rate of 16000 Hz, .*a/0\.wav has 8000 Hz"):
        open_rows(str(folder)).read()


def test_lines_of_a_table_are_series_or_samples(tmp_path: Path) -> None:
    path = tmp_path / "walk" / "1.csv"
    path.parent.mkdir()
    path.write_text("x,y,state\n1,2,a\n3,4.5,\n,6,b\n")
    one_a_line = open_series(str(path), "state").read()["train"]
    assert one_a_line["input_values"][:2] == [[1, 2], [3, 4.5]]
    assert one_a_line["state"][:] == ["a", "", "b"]
    recording = open_series(str(path), "state", per_sample=True).read(["input_values", "state"])["train"]
    assert recording["input_values"][0][:2] == [[1, 2], [3, 4.5]]
    assert np.isnan(recording["input_values"][0][2][0])
    assert recording["state"][0] == ["a", "", "b"]
    path.write_text("x,y\n1,2\n3,4\n")
    assert open_series(str(path), "label").read()["train"][0] == {
        "input_values": [[1, 2], [3, 4]], "label": "walk", "file": "1.csv"
    }  # fmt: skip
    assert open_series(str(tmp_path), "label").read()["train"]["file"][:] == ["walk/1.csv"]
    path.write_text("x,y\n1,2\n3,four\n")
    with pytest.raises(ValueError, match=r"1\.csv, line 3: 'y' is 'four', not a number"):
        open_series(str(path), "label").read()
    path.write_text("x,y\n")
    with pytest.raises(ValueError, match="has no samples"):
        open_series(str(path), "label").read()


def test_the_folder_of_a_recording_is_part_of_its_key_where_it_is_the_class(tmp_path: Path) -> None:
    found = []
    for text in ("value\n1\n2\n", "value,label\n1,a\n2,b\n"):
        for name in ("one", "two"):
            (tmp_path / name).mkdir(exist_ok=True)
            (tmp_path / name / "r.csv").write_text(text)
            found.append(open_series(str(tmp_path / name), "label", per_sample=True).key())
    assert found[0] != found[1]
    assert found[2] == found[3]


def test_features_of_recordings_are_matched_by_name(tmp_path: Path) -> None:
    for header, line in (("t,x,label", "{0},7,p"), ("x,t,label", "7,{0},q"), ("label,t,x", "q,{0},7")):
        text = "\n".join([header, *(line.format(i) for i in range(5))])
        (tmp_path / f"{header}.csv").write_text(text + "\n")
    rows = open_series(str(tmp_path), "label", per_sample=True).read()["train"]
    values = np.asarray(rows["input_values"][:])
    assert values.shape == (3, 5, 2)
    assert (values == values[0]).all()
    assert sorted(values[0, 4].tolist()) == [4, 7]


def test_features_may_be_chosen(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("x,y,time,label\n1,2,800,p\n3,4,801,q\n")
    (tmp_path / "b.csv").write_text("y,x\n6,5\n8,7\n")
    source = str(tmp_path)
    chosen = open_series(source, "label", per_sample=True, features=["y", "x"])
    assert chosen.read(["input_values"])["train"]["input_values"][:] == [[[2, 1], [4, 3]], [[6, 5], [8, 7]]]
    assert chosen.reading_options() == {"features": ["y", "x"]}
    same = [open_series(source, "label", per_sample=True, features=f).key() for f in (None, ["x", "y", "time"])]
    assert same[0] == same[1] != chosen.key()
    with pytest.raises(ValueError, match=r"b\.csv has other columns \(y, x\) than .*a\.csv \(x, y, time\)"):
        open_series(source, "label", per_sample=True).read()
    with pytest.raises(ValueError, match=r"unknown column of .*a\.csv: 'tim'; did you mean 'time'"):
        open_series(source, "label", per_sample=True, features=["tim"]).read()


def test_lines_that_are_series_have_no_features_to_keep(tmp_path: Path) -> None:
    (tmp_path / "1.csv").write_text("x,y,label\n1,2,a\n")
    (tmp_path / "2.csv").write_text("y,x,label\n2,1,a\n")
    (tmp_path / "3.csv").write_text("x,y,z,label\n1,2,3,b\n")
    source = open_series(str(tmp_path), "label")
    assert source.read()["train"]["input_values"][:] == [[1, 2], [1, 2], [1, 2, 3]]
    assert source.reading_options() == {"lines": True}
    (tmp_path / "new").mkdir()
    (tmp_path / "new" / "1.csv").write_text("x,y\n1,2\n3,4\n")
    other = open_series(str(tmp_path / "new"), "label", **source.reading_options())
    assert other.read()["train"].to_dict() == {"input_values": [[1, 2], [3, 4]]}
    assert other.folder_label is None


def test_features_of_other_files_are_an_error(tmp_path: Path) -> None:
    np.savez(tmp_path / "a.npz", input_values=np.zeros((4, 5)), label=np.arange(4))
    with pytest.raises(ValueError, match=r"`features` and `lines` are for .* has none"):
        open_series(str(tmp_path / "a.npz"), "label", features=["x"]).reading_options()


def test_folders_are_classes_even_if_their_names_are_numbers(tmp_path: Path) -> None:
    for number in range(51):
        for i in range(3):
            write(tmp_path / f"{number / 2:g}" / f"{i}.wav", wave(20 + number + i))
    source = open_series(str(tmp_path), "label")
    data = prepare_labelled(source, inputs="values", cache=tmp_path / "cache", progress=False)
    assert data.kind == "classification"
    assert data.label_names is not None
    assert len(data.label_names) == 51


def test_features_of_lines_are_matched_by_name_and_other_columns_kept(tmp_path: Path) -> None:
    (tmp_path / "1.csv").write_text("label,x,y\na,1,2\nb,3,4\n")
    source = open_series(str(tmp_path), "label")
    assert source.reading_options() == {"lines": True, "features": ["x", "y"]}
    (tmp_path / "new").mkdir()
    (tmp_path / "new" / "1.csv").write_text("id,y,x\nfirst,2,1\n")
    other = open_series(str(tmp_path / "new"), "label", **source.reading_options()).read()["train"]
    assert other.to_dict() == {"id": ["first"], "input_values": [[1, 2]]}
    (tmp_path / "new" / "1.csv").write_text("y\n2\n")
    with pytest.raises(ValueError, match="lacks 1 column of 2, first 'x': a line is a series"):
        open_series(str(tmp_path / "new"), "label", **source.reading_options()).read()


def test_a_recording_may_have_a_column_of_its_label(tmp_path: Path) -> None:
    for name in ("yes", "no"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "1.csv").write_text("x\n1\n2\n")
    found = open_series(str(tmp_path), "label").reading_options()
    assert found == {"lines": False, "features": ["x"]}
    path = tmp_path / "new.csv"
    path.write_text("label,x\nyes,3\nyes,4\n")
    row = open_series(str(path), "label", **found).read()["train"]
    assert row.to_dict() == {"input_values": [[[3], [4]]], "file": ["new.csv"], "label": ["yes"]}
    path.write_text("label,x\nyes,3\nno,4\n")
    with pytest.raises(ValueError, match=r"new\.csv has samples with different labels \('no', 'yes'"):
        open_series(str(path), "label", **found).read()


def test_recordings_without_the_labels_of_others_are_named(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("x,state\n1,p\n2,q\n")
    (tmp_path / "b.csv").write_text("x\n1\n2\n")
    source = open_series(str(tmp_path), "state", per_sample=True)
    with pytest.raises(ValueError, match=r"b\.csv has no column 'state', which other recordings have"):
        source.read(["input_values", "state"])
    assert source.read()["train"]["state"][:] == [["p", "q"], ["", ""]]


def wide(path: Path, **options: Any) -> Path:
    """Series on lines, as pandas writes them."""
    frame = pd.DataFrame(np.random.default_rng(0).normal(size=(40, 6)).round(3))
    frame.assign(label=np.arange(40) % 2).to_csv(path, **options)
    return path


@pytest.mark.parametrize(
    ("options", "left"),
    [
        ({}, "Unnamed: 0"),
        ({"index_label": "id"}, "id"),
        ({"index": False}, None),
        ({"sep": ";", "decimal": ","}, "Unnamed: 0"),
    ],
)
def test_the_number_of_a_row_is_no_sample(tmp_path: Path, options: dict[str, Any], left: str | None) -> None:
    source = open_series(str(wide(tmp_path / "a.csv", **options)), "label")
    expected = np.random.default_rng(0).normal(size=(40, 6)).round(3)
    np.testing.assert_allclose(source.read()["train"]["input_values"][:], expected, atol=1e-6)
    assert source.reading_options() == {"lines": True, "features": [str(i) for i in range(6)]}
    assert list(source.notes) == (
        [f"column {left!r} is an index of the rows and is left out (`features` can name it)"] if left else []
    )


def test_numbers_of_shuffled_rows_are_no_samples(tmp_path: Path) -> None:
    frame = pd.DataFrame(np.random.default_rng(0).normal(size=(40, 6)).round(3)).assign(label=np.arange(40) % 2)
    frame["n"] = 7
    frame.sample(frac=1, random_state=0).reset_index().to_csv(tmp_path / "a.csv", index=False)
    source = open_series(str(tmp_path / "a.csv"), "label")
    assert source.reading_options()["features"] == [*map(str, range(6)), "n"]
    assert source.notes == ("column 'index' is an index of the rows and is left out (`features` can name it)",)


def test_an_index_is_no_feature_of_a_recording(tmp_path: Path) -> None:
    for name in ("a", "b"):
        (tmp_path / name / "s1").mkdir(parents=True)
        pd.DataFrame({"t": range(9), "x": np.arange(9) / 2}).to_csv(tmp_path / name / "s1" / "1.csv")
    source = open_series(str(tmp_path), "label")
    assert source.reading_options()["features"] == ["t", "x"]
    assert source.read()["train"]["label"][:] == ["a", "b"]
    assert source.notes == ("column 'Unnamed: 0' is an index of the rows and is left out (`features` can name it)",)


@pytest.mark.parametrize("per_sample", [False, True])
@pytest.mark.parametrize("columns", [["id", "time", "value"], ["time", "id", "value"], ["id", "value", "date"]])
@pytest.mark.parametrize("labelled", [False, True])
def test_long_tables_are_refused(tmp_path: Path, per_sample: bool, columns: list[str], labelled: bool) -> None:
    frame = pd.DataFrame({"id": np.repeat(["s1", "s2", "s3", "s4"], 8), "time": np.tile(np.arange(8), 4)})
    frame["date"] = pd.Timestamp("2024-01-30") + pd.to_timedelta(frame["time"], unit="D")
    frame["value"], frame["label"] = np.sin(np.arange(32) ** 2), np.repeat([0, 1, 0, 1], 8)
    frame[[*columns, *(["label"] * labelled)]].sort_values(columns[0], kind="stable").to_csv(
        tmp_path / "a.csv", index=False
    )
    source = open_series(str(tmp_path / "a.csv"), "label", per_sample=per_sample)
    with pytest.raises(ValueError, match=r"a\.csv has several lines for each series.*file.*`features`"):
        source.read()
    chosen = open_series(str(tmp_path / "a.csv"), "label", per_sample=per_sample, features=["value"])
    assert len(chosen.read()["train"]) == (32 if labelled and not per_sample else 1)


@pytest.mark.parametrize("text", ["1\t0.5\t0.25\n2\t0.1\t0.3\n", "0.5\n0.25\n", "0.5\t0.25\tcat\n0.1\t1\tdog\n"])
def test_series_without_a_header_are_named(tmp_path: Path, text: str) -> None:
    (tmp_path / "a.tsv").write_text(text)
    with pytest.raises(ValueError, match=r"the first line of .*a\.tsv has numbers .*; it must have names of columns"):
        open_series(str(tmp_path / "a.tsv"), "label").read()


def test_a_table_of_series_without_the_column_of_labels_is_told_how_to_name_it(tmp_path: Path) -> None:
    folder = tmp_path / "notes"
    folder.mkdir()
    rows = "".join(f"{i / 7:.3f},{i / 3:.3f},{i % 2},{i // 2 % 2}\n" for i in range(12))
    (folder / "a.csv").write_text(f"first,second,loud,long\n{rows}")
    source = open_series(str(folder / "a.csv"), "label")
    with pytest.raises(ValueError, match=r"`label=COLUMN` \(columns: first, second, loud, long\)"):
        read_labelled(source, ("input_values",), "label", kind="multi_label", values=True)
    source = open_series(str(folder / "a.csv"), ["load", "long"])
    with pytest.raises(ValueError, match=r"has no column 'load'; name the right one with `label=COLUMN`"):
        read_labelled(source, ("input_values",), ["load", "long"], values=True)


def test_lists_in_a_data_set_may_have_times() -> None:
    rows = Dataset.from_dict({"label": ["a"], "input_values": [[3.0, 4.0, 5.0]], "at": [[0, 2, 3]]})
    found = open_series(rows, "label", time="at").read()["train"].to_dict()
    assert found == {"label": ["a"], "input_values": [[[0, 3], [2, 4], [1, 5]]]}


@pytest.mark.parametrize("table", ["metadata.csv", "labels.csv", "metadata.jsonl"])
def test_labels_in_a_table_beside_the_sounds(table: str, tmp_path: Path) -> None:
    for split, count in (("train", 4), ("test", 2)):
        for i in range(count):
            write(tmp_path / split / f"{i}.wav", wave(20 + i))
        rows = pd.DataFrame({"file_name": [f"{i}.wav" for i in range(count)], "label": ["yes", "no"] * (count // 2)})
        path = tmp_path / split / table
        rows.to_json(path, orient="records", lines=True) if path.suffix == ".jsonl" else rows.to_csv(path, index=False)
    found = open_rows(str(tmp_path)).read()
    assert {split: rows["label"][:] for split, rows in found.items()} == {
        "train": ["yes", "no"] * 2,
        "test": ["yes", "no"],
    }
    assert open_rows(str(tmp_path)).notes == ()
    if table == "labels.csv":
        (tmp_path / "train" / table).write_text("file_name,label\n9.wav,yes\n")
        with pytest.raises(ValueError, match=r"labels\.csv, row 1: there is no file .*9\.wav"):
            open_rows(str(tmp_path))


TS = """# two dimensions
@problemName waves
@timeStamps false
@classLabel true up down
@data
1,2,3:4,5,6:up
-1,-2:0.5,1e-3:down
"""


def rows_of(path: Path, text: str) -> list[dict]:
    path.write_text(text)
    rows: Any = open_rows(str(path)).read()["train"]
    return list(rows)


def test_ts_files_have_series_of_several_dimensions_and_lengths(tmp_path: Path) -> None:
    first, second = rows_of(tmp_path / "waves.ts", TS)
    assert first == {"input_values": [[1, 4], [2, 5], [3, 6]], "label": "up"}
    assert second["label"] == "down"
    np.testing.assert_allclose(second["input_values"], [[-1, 0.5], [-2, 1e-3]])
    assert rows_of(tmp_path / "tabs.ts", TS.replace(" ", "\t"))[1]["label"] == "down"
    bare = TS.replace("@classLabel true up down", "@classLabel false").replace(":up", "").replace(":down", "")
    assert rows_of(tmp_path / "bare.ts", bare)[0] == {"input_values": first["input_values"]}


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("1,2,3:4,5,6", "1,2,3:4,5", r"line 6 has dimensions of 2 to 3 values"),
        ("-1,-2:0.5,1e-3", "-1,x:0.5,1e-3", r"line 7 has a value that is not a number"),
        ("-1,-2:0.5,1e-3", "-1,-2", r"line 7 has 1 dimensions, and the first series 2"),
        ("@timeStamps false", "@timeStamps true", r"line 3 has time stamps"),
        ("@data", "data", r"line 5 is before @data"),
    ],
)
def test_errors_name_the_line(tmp_path: Path, old: str, new: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        rows_of(tmp_path / "waves.ts", TS.replace(old, new))


@pytest.mark.parametrize("suffix", [".flac", ".ogg", ".mp3"])
def test_compressed_sounds_are_rows(tmp_path: Path, suffix: str) -> None:
    soundfile = pytest.importorskip("soundfile")
    if suffix[1:].upper() not in soundfile.available_formats():
        pytest.skip(f"this libsndfile has no {suffix}")
    for name in ("low", "high"):
        (tmp_path / "sounds" / name).mkdir(parents=True)
        wave = 0.5 * np.sin(np.arange(8000) * (0.05 if name == "low" else 0.5))
        soundfile.write(tmp_path / "sounds" / name / f"1{suffix}", wave, 8000)
    rows = open_series(str(tmp_path / "sounds"), "label").read()["train"]
    assert sorted(rows["label"]) == ["high", "low"]
    assert set(rows["sampling_rate"]) == {8000}
    assert all(abs(np.abs(np.asarray(each)).max() - 0.5) < 0.1 for each in rows["input_values"])
    assert open_series(str(tmp_path / "sounds"), "label").reading_options() == {"rate": 8000}
    (tmp_path / "sounds" / "low" / f"1{suffix}").write_bytes(b"no sound")
    with pytest.raises(ValueError, match=f"is not a complete {suffix} file"):
        open_series(str(tmp_path / "sounds"), "label").read()
