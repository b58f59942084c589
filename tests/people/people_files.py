"""Small files as people have them: exports of spreadsheets, R and pandas, hub layouts, recordings, folders, pipes."""

from __future__ import annotations

import csv
import gzip
import io
import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
from PIL import Image
from scipy.io import wavfile

ROWS = 40
TEXTS = [f"a {'good' if i % 2 else 'bad'} film, number {i}" for i in range(ROWS)]
CLASSES = ["yes" if i % 2 else "no" for i in range(ROWS)]
NUMBERS = [i % 5 + (i % 2) / 2 for i in range(ROWS)]


class Case(NamedTuple):
    """Files of one person.

    Attributes:
        recipe: the recipe that they train.
        write: writes the files into a folder, and returns the name to give as ``--data``.
        settings: overrides that they need.
        labels: the classes of the model; None for a model without classes.
        rows: rows that ``predict`` gives for the same files.
    """

    recipe: str
    write: Callable[[Path], str]
    settings: tuple[str, ...]
    labels: tuple[str, ...] | None
    rows: int


CASES: dict[str, Case] = {}


def case(
    recipe: str, *settings: str, labels: Sequence[str] | None = ("no", "yes"), rows: int = ROWS
) -> Callable[[Callable[[Path], str]], Callable[[Path], str]]:
    """Enter a function that writes files into `CASES`, by its name."""

    def enter(write: Callable[[Path], str]) -> Callable[[Path], str]:
        name = write.__name__.replace("_", " ").strip()
        CASES[name] = Case(recipe, write, settings, None if labels is None else tuple(labels), rows)
        return write

    return enter


def table(columns: dict[str, Sequence[Any]], *, end: str = "\n", **options: Any) -> str:
    """Write columns as .csv; options: of `csv.writer`."""
    file = io.StringIO()
    writer = csv.writer(file, lineterminator=end, **options)
    writer.writerow(columns)
    writer.writerows(zip(*columns.values(), strict=True))
    return file.getvalue()


def comma(numbers: Sequence[float]) -> list[str]:
    """Write numbers with a decimal comma."""
    return [f"{number:.2f}".replace(".", ",") for number in numbers]


# Labelled texts.


@case("classify", "task.text=Text", "task.label=Urteil")
def spreadsheet_german(folder: Path) -> str:
    columns = {"Nr.": range(ROWS), "Text": TEXTS, "Länge": comma(NUMBERS), "Urteil": CLASSES}
    (folder / "Bewertungen Mai.csv").write_text(table(columns, delimiter=";", end="\r\n"), encoding="utf-8-sig")
    return "Bewertungen Mai.csv"


@case("classify", "task.text=avis", "task.label=note", labels=None)
def spreadsheet_french_with_decimal_commas(folder: Path) -> str:
    columns = {"avis": [text.replace("film", "film très") for text in TEXTS], "note": comma(NUMBERS)}
    (folder / "avis.csv").write_text(table(columns, delimiter=";", end="\r\n"), encoding="utf-8-sig")
    return "avis.csv"


@case("classify", "task.text=Review", "task.label=Stars", labels=("1", "2", "3", "4", "5"))
def spreadsheet_american_with_lines_in_cells(folder: Path) -> str:
    texts = [f'He said: "{text}",\n\nand left.' for text in TEXTS]
    columns = {"Review": texts, "Stars": [i % 5 + 1 for i in range(ROWS)], "Price": ["$1,234.50"] * ROWS}
    (folder / "reviews.csv").write_text(table(columns, end="\r\n"))
    return "reviews.csv"


@case("classify", "task.kind=multi_label", "task.text=text", "task.label=topics", labels=("1", "1.2", "2", "3"))
def several_labels_that_look_like_numbers(folder: Path) -> str:
    labels = [["1,2", "3", "1.2", "2,3"][i % 4] for i in range(ROWS)]
    (folder / "topics.tsv").write_text(table({"text": TEXTS, "topics": labels}, delimiter="\t"))
    return "topics.tsv"


@case("classify", "task.text=text", "task.label=label")
def r_write_csv(folder: Path) -> str:
    """`write.csv(d, "d.csv")`: row names in a column without a name, and all text in quotes."""
    lines = ['"","text","label","n"']
    lines += [f'"{i + 1}","{TEXTS[i]}","{CLASSES[i]}",{"NA" if i % 9 == 0 else i}' for i in range(ROWS)]
    (folder / "d.csv").write_text("\n".join(lines) + "\n")
    return "d.csv"


@case("classify")
def pandas_with_index(folder: Path) -> str:
    pd.DataFrame({"text": TEXTS, "label": CLASSES}).sample(frac=1, random_state=0).to_csv(folder / "frame.csv")
    return "frame.csv"


@case("classify")
def pandas_compressed(folder: Path) -> str:
    pd.DataFrame({"text": TEXTS, "label": CLASSES}).to_csv(folder / "frame.tsv.gz", sep="\t", index=False)
    return "frame.tsv.gz"


@case("classify", "task.text=[premise, hypothesis]")
def json_lines_of_pairs(folder: Path) -> str:
    rows = [{"premise": t, "hypothesis": t[::-1], "label": c} for t, c in zip(TEXTS, CLASSES, strict=True)]
    (folder / "pairs.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return "pairs.jsonl"


@case("classify", labels=("crime", "fun"))
def json_lines_of_lists_of_labels(folder: Path) -> str:
    rows = [{"text": t, "label": ["crime"] * (i % 2) + ["fun"] * (i % 3 > 0)} for i, t in enumerate(TEXTS)]
    (folder / "genres.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return "genres.jsonl"


@case("classify", "task.kind=multi_label", labels=("crime", "fun"))
def spreadsheet_with_a_column_for_each_label(folder: Path) -> str:
    columns = {"text": TEXTS, "crime": [i % 2 for i in range(ROWS)], "fun": [int(i % 3 > 0) for i in range(ROWS)]}
    (folder / "flags.csv").write_text(table(columns))
    return "flags.csv"


@case("classify", "task.text=sentence", labels=("neg", "pos"))
def hub_parquet_with_names_of_classes(folder: Path) -> str:
    """As `datasets` writes a repository: shards by split, with classes as integers whose names are in the schema."""
    (folder / "data").mkdir()
    label = {"names": ["neg", "pos"], "_type": "ClassLabel"}
    features = {"sentence": {"dtype": "string", "_type": "Value"}, "label": label}
    about = {"huggingface": json.dumps({"info": {"features": features}})}
    for split, rows in (("train", range(24)), ("validation", range(24, 32)), ("test", range(32, ROWS))):
        made = pa.table({"sentence": [TEXTS[i] for i in rows], "label": [i % 2 for i in rows]})
        pq.write_table(made.replace_schema_metadata(about), folder / "data" / f"{split}-00000-of-00001.parquet")
    (folder / "README.md").write_text("---\nlicense: mit\n---\n")
    return "data"


@case("classify")
def tables_by_split(folder: Path) -> str:
    for split, rows in (("train", slice(0, 24)), ("dev", slice(24, 32)), ("test", slice(32, ROWS))):
        (folder / f"{split}.csv").write_text(table({"text": TEXTS[rows], "label": CLASSES[rows]}))
    return "."


def stray(folder: Path, *places: str) -> None:
    """Files that systems and people leave beside data."""
    for place in ("", *places):
        (folder / place / ".DS_Store").write_bytes(b"\0\0\0\1Bud1")
        (folder / place / "Thumbs.db").write_bytes(b"\xd0\xcf\x11\xe0")
    (folder / "README.md").write_text("# My data\n")


@case("classify")
def class_folders_of_texts(folder: Path) -> str:
    for i, (text, name) in enumerate(zip(TEXTS, CLASSES, strict=True)):
        (folder / name).mkdir(exist_ok=True)
        (folder / name / f"review {i}.txt").write_text(text, newline="\r\n")
    stray(folder, "yes", "no")
    return "."


# Running text.


@case("tnn-lm", labels=None, rows=8)
def folder_of_books(folder: Path) -> str:
    names = ("Emma", "Persuasion", "Ivanhoe", "Dracula", "Training Day", "Kim", "Waverley", "Middlemarch")
    for name in names:
        (folder / f"{name}.txt").write_text(f"{name}\n\nby somebody\n\n" + "It was a dark night.\n" * 40)
    stray(folder)
    return "."


@case("tnn-lm", labels=None, rows=0)
def text_of_windows(folder: Path) -> str:
    lines = [f"line {i} of a long text" for i in range(300)]
    (folder / "notes.txt").write_bytes(b"\xef\xbb\xbf" + "\r\n".join(lines).encode())
    return "notes.txt"


@case("tnn-mlm", "data.lengths=null", labels=None, rows=0)
def json_lines_of_documents_compressed(folder: Path) -> str:
    with gzip.open(folder / "documents.jsonl.gz", "wt") as file:
        file.writelines(
            json.dumps({"id": i, "text": f"document {i} says this and that. " * 5}) + "\n" for i in range(60)
        )
    return "documents.jsonl.gz"


# Series, sounds and images.


def wave(number: int, samples: int = 200, rate: int = 8000) -> np.ndarray:
    """A low tone for even numbers, and a high one for odd ones."""
    at = np.arange(samples) / rate
    noise = np.random.default_rng(number).normal(0, 0.05, samples)
    return np.sin(2 * np.pi * (1500 if number % 2 else 300) * at + number) + noise


def write_sound(path: Path, values: np.ndarray, rate: int = 8000) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    wavfile.write(path, rate, (9000 * values).clip(-32768, 32767).astype(np.int16))


@case("signal", labels=("high", "low"))
def class_folders_of_sounds(folder: Path) -> str:
    for i in range(ROWS):
        write_sound(folder / ["low", "high"][i % 2] / f"{i:03}.wav", wave(i, 150 + i))
    stray(folder, "low", "high")
    return "."


@case(
    "signal",
    "task.stride=1",
    "model=tnn",
    "model.block.token_mixer.kernel={name: s4d, modes: 2}",
    labels=("high", "low"),
)
def sounds_of_several_rates(folder: Path) -> str:
    for i in range(ROWS):
        rate = (8000, 16000)[i // 2 % 2]
        write_sound(folder / ["low", "high"][i % 2] / f"{i:03}.wav", wave(i, 150 * rate // 8000, rate), rate)
    return "."


@case("series", labels=("1", "2"))
def files_of_a_series_archive(folder: Path) -> str:
    """As the UCR and UEA archives: a header, then a line for each series, with the class at its end."""
    head = "@problemName Tones\n@timeStamps false\n@univariate true\n@classLabel true 1 2\n@data\n"
    for split, rows in (("TRAIN", range(28)), ("TEST", range(28, ROWS))):
        lines = (",".join(f"{v:.5f}" for v in wave(i, 24)) + f":{i % 2 + 1}" for i in rows)
        (folder / f"Tones_{split}.ts").write_text(head + "\n".join(lines) + "\n")
    return "."


@case("series", labels=("high", "low"))
def json_lines_of_series(folder: Path) -> str:
    rows = [
        {"input_values": wave(i, 24 + i % 3).round(4).tolist(), "label": ["low", "high"][i % 2]} for i in range(ROWS)
    ]
    (folder / "series.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return "series.jsonl"


@case("series", labels=("high", "low"))
def class_folders_of_recordings(folder: Path) -> str:
    for i in range(ROWS):
        path = folder / ["low", "high"][i % 2] / f"{i}.csv"
        path.parent.mkdir(exist_ok=True)
        path.write_text(table({"x": wave(i, 24).round(4), "y": wave(i + 1, 24).round(4)}))
    return "."


@case("series", labels=("0", "1"))
def series_in_the_lines_of_a_table(folder: Path) -> str:
    pd.DataFrame([wave(i, 24) for i in range(ROWS)]).assign(label=np.arange(ROWS) % 2).to_csv(folder / "lines.csv")
    return "lines.csv"


@case("series", labels=("0", "1"))
def arrays_of_numpy(folder: Path) -> str:
    values = np.stack([np.stack([wave(i, 24), wave(i + 1, 24)], axis=1) for i in range(ROWS)])
    np.savez(folder / "series.npz", input_values=values.astype(np.float32), label=np.arange(ROWS) % 2)
    return "series.npz"


@case("tnn-digits", labels=("dark", "light"))
def class_folders_of_photos(folder: Path) -> str:
    for i in range(ROWS):
        pixels = np.random.default_rng(i).integers(0, 99 + 99 * (i % 2), (8, 8, 3), dtype=np.uint8)
        path = folder / ["dark", "light"][i % 2] / f"IMG {i:04}.{'png' if i % 3 else 'JPG'}"
        path.parent.mkdir(exist_ok=True)
        Image.fromarray(pixels).save(path)
    stray(folder, "dark", "light")
    return "."


@case("tnn-digits", labels=("dark", "light"))
def photos_beside_a_table_of_labels(folder: Path) -> str:
    """As the imagefolder of `datasets`: file names and labels in ``metadata.csv``."""
    for i in range(ROWS):
        pixels = np.random.default_rng(i).integers(0, 99 + 99 * (i % 2), (8, 8, 3), dtype=np.uint8)
        Image.fromarray(pixels).save(folder / f"{i:03}.png")
    columns = {
        "file_name": [f"{i:03}.png" for i in range(ROWS)],
        "label": [["dark", "light"][i % 2] for i in range(ROWS)],
    }
    (folder / "metadata.csv").write_text(table(columns))
    return "."


@case("signal-steps", labels=("off", "on"), rows=6)
def recordings_of_a_sensor_german(folder: Path) -> str:
    for number in range(6):
        values = np.random.default_rng(number).normal(size=(90, 2))
        labels = ["" if i % 7 == 3 else "on" if x > 0 else "off" for i, x in enumerate(values[:, 0])]
        columns = {"Druck": comma(values[:, 0]), "Fluss": comma(values[:, 1]), "label": labels}
        (folder / f"Messung {number}.csv").write_text(table(columns, delimiter=";"), encoding="utf-8-sig")
    return "."


@case("denoise", "task.targets=[flow]", "task.stride=1", "task.delay=0", "task.window=0", labels=None, rows=540)
def recordings_with_another_sensor(folder: Path) -> str:
    for number in range(6):
        x = np.random.default_rng(number).normal(size=90).round(3)
        columns = {"pressure": x, "flow": ["" if i % 11 == 3 else v for i, v in enumerate(np.cumsum(x).round(3))]}
        (folder / f"recording-{number}.csv").write_text(table(columns))
    return "."


@case(
    "denoise",
    "task.noise=noise",
    "task.ratios=[0, 10]",
    "task.stride=4",
    "task.window=16",
    "task.delay=4",
    labels=None,
    rows=1600,
)
def speech_and_noise(folder: Path) -> str:
    for number in range(8):
        write_sound(folder / "speech" / f"{number}.wav", wave(number))
    for number in range(4):
        write_sound(folder / "noise" / f"{number}.wav", np.random.default_rng(number).normal(size=150))
    return "speech"


# Series over time.


def sales(count: int = 120) -> np.ndarray:
    random = np.random.default_rng(0)
    return (20 + 5 * np.sin(np.arange(count) * 2 * np.pi / 7) + random.normal(0, 0.5, count)).round(2)


@case("forecast-tnn", "task.horizon=4", "task.patch=2", labels=None, rows=4)
def sales_of_a_german_spreadsheet(folder: Path) -> str:
    dates = pd.date_range("2024-03-01", periods=120).strftime("%d.%m.%Y")
    columns = {"Datum": dates, "Umsatz": comma(sales()), "Kosten": comma(sales() / 2)}
    (folder / "Umsatz.csv").write_text(table(columns, delimiter=";", end="\r\n"), encoding="utf-8-sig")
    return "Umsatz.csv"


@case("forecast", "--horizon=4", labels=None, rows=4)
def sales_of_an_american_spreadsheet(folder: Path) -> str:
    dates = [f"{d.month}/{d.day}/{d.year}" for d in pd.date_range("2024-01-01", periods=120)]
    (folder / "sales.csv").write_text(
        table({"Date": dates, "Sales": [f"{1000 + v:,.2f}" for v in sales()]}, end="\r\n")
    )
    return "sales.csv"


@case("forecast", "--horizon=4", labels=None, rows=4)
def series_of_pandas(folder: Path) -> str:
    pd.DataFrame({"a": sales(), "b": sales()[::-1]}, pd.date_range("2024", periods=120, freq="h")).to_csv(
        folder / "h.csv"
    )
    return "h.csv"


@case("forecast", "--horizon=3", "--time=month", "--columns=sales", labels=None, rows=3)
def monthly_series_of_r(folder: Path) -> str:
    months = pd.period_range("2015-01", periods=84, freq="M")
    lines = [f'"{i + 1}","{month}",{value}' for i, (month, value) in enumerate(zip(months, sales(84), strict=True))]
    (folder / "monthly.csv").write_text("\n".join(['"","month","sales"', *lines]) + "\n")
    return "monthly.csv"


@case("forecast", "--horizon=4", "--id=store", "--target=sales", labels=None, rows=8)
def long_table_of_stores(folder: Path) -> str:
    days = [str(day.date()) for day in pd.date_range("2024-03-01", periods=120)] * 2
    columns = {"store": ["north"] * 120 + ["south"] * 120, "day": days, "sales": [*sales(), *sales()[::-1]]}
    (folder / "stores.csv").write_text(table(columns))
    return "stores.csv"
