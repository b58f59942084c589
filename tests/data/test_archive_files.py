"""Files of the UCR and UEA archives, and compressed sounds, as rows."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from lagwise.data import open_rows, prepare_labelled
from lagwise.data.series import open_series

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


def test_arff_files_have_one_dimension_or_several(tmp_path: Path) -> None:
    one = "% a comment\n@RELATION w\n@attribute t0 numeric\n@attribute class {a,b}\n@DATA\n1,?,3,a\n4,5,6,b\n"
    first, second = rows_of(tmp_path / "one.arff", one)
    assert second == {"input_values": [[4], [5], [6]], "label": "b"}
    assert np.isnan(first["input_values"][1][0])
    first_class = one.replace("@attribute t0", "@attribute class {a,b}\n@attribute t0", 1)
    with pytest.raises(ValueError, match=r"line 4 follows an attribute that is a class, which must be the last"):
        rows_of(tmp_path / "one.arff", first_class)
    several = "@relation w\n@attribute r relational\n@data\n'1,2\\n3,4','a b'\n\"5,6\\n7,8\",c\n"
    first, second = rows_of(tmp_path / "several.arff", several)
    assert first["input_values"] == [[1, 3], [2, 4]]
    assert second == {"input_values": [[5, 7], [6, 8]], "label": "c"}


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


def test_an_archive_is_read_in_its_own_splits(tmp_path: Path) -> None:
    lines = "".join(f"{i},{i + 1},{i % 3}:{'up' if i % 2 else 'down'}\n" for i in range(40))
    for split in ("TRAIN", "TEST"):
        (tmp_path / f"Waves_{split}.ts").write_text(TS.partition("1,2,3")[0] + lines)
    source = open_series(str(tmp_path), "label")
    found = prepare_labelled(source, inputs="values", cache=tmp_path / "cache", progress=False)
    assert (found.label_names, len(found.splits["test"]), found.features) == (("down", "up"), 40, 1)


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
