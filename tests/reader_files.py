"""Small files with the names that the documentation's examples use."""

from __future__ import annotations

import gzip
import json
import random
import shutil
from datetime import date, datetime, timedelta
from pathlib import Path

import numpy as np
from glue_files import FILES, write_task
from PIL import Image
from scipy.io import wavfile


def write_files(folder: Path) -> None:
    """Write the texts, tables, sounds and images that a reader of the documentation is assumed to have."""
    text = "\n".join(f"def name_{i}(x):\n    return x + {i * i}" for i in range(4000))
    (folder / "my.txt").write_text(text)
    for name in ("book", "held-out"):
        (folder / f"{name}.txt").write_text(text[:3000])
    for day, lines in (("yesterday", 1100), ("today", 20)):
        log = "".join(f"12:{i % 60:02d} host job[{i % 7}]: done\n" for i in range(lines))
        (folder / f"{day}.log").write_text(log)
    tagged = "Ada NN NNP I-NP B-PER\nlives VB VBZ I-VP O\nin IN IN I-PP O\nRome NN NNP I-NP B-LOC\n"
    (folder / "train.conll").write_text("-DOCSTART- -X- O O\n\n" + "\n".join([tagged] * 8))
    write_tables(folder)
    for task in FILES:
        write_task(folder / "glue", task, count=200)
    (folder / "glue" / "sst2").rename(folder / "glue" / "SST-2")
    (folder / "glue" / "SST-2" / "test.tsv").write_text("index\tsentence\n0\ta film\n1\tanother film\n")
    write_images(folder)
    for name in ("sounds", "recordings", "new-sounds", "voices", "noise", "calls", "recorded/noisy", "recorded/clean"):
        write_sounds(folder / name)
    shutil.copy(folder / "calls" / "yes" / "0.wav", folder / "call.wav")
    write_books(folder / "books")
    notes = [{"id": path.stem, "text": path.read_text()[:2000]} for path in (folder / "books").iterdir()]
    (folder / "notes.jsonl").write_text("".join(json.dumps(each) + "\n" for each in notes))
    write_signals(folder)
    write_genes(folder)
    write_heartbeats(folder / "mit-bih")


def write_tables(folder: Path) -> None:
    """Reviews, an hourly series, and a series with the name and columns of a benchmark."""
    reviews = [f"{'good' if i % 2 else 'bad'} film number {i},{i % 2}" for i in range(120)]
    rows = "".join(f"{row},{row}\n" for row in reviews)
    (folder / "reviews.csv").write_text("text,label,review,stars\n" + rows)
    (folder / "new.csv").write_text("review\n" + "\n".join(f"film {i}" for i in range(5)) + "\n")
    kinds = [(i % 2, i % 3 == 0) for i in range(120)]
    genres = "".join(
        f"{'joke ' * a}{'gun ' * b}film {i},{'|'.join(['comedy'] * a + ['crime'] * b)}\n"
        for i, (a, b) in enumerate(kinds)
    )
    (folder / "genres.csv").write_text("text,label\n" + genres)
    flags = "".join(f"{'joke ' * a}{'gun ' * b}film {i},{a},{b:d}\n" for i, (a, b) in enumerate(kinds))
    (folder / "flags.csv").write_text("text,comedy,crime\n" + flags)
    for i, review in enumerate(reviews):  # as in IMDb's archive
        text, label = review.split(",")
        each = folder / "aclImdb" / ("train" if i < 80 else "test") / ("pos" if label == "1" else "neg")
        each.mkdir(parents=True, exist_ok=True)
        (each / f"{i}.txt").write_text(text)
    (folder / "imdb").mkdir()
    for split, part in (("train", reviews[:80]), ("test", reviews[80:])):
        (folder / "imdb" / f"{split}.csv").write_text("\n".join(["text,label", *part]) + "\n")
    start = datetime(2024, 1, 1)
    hours = "".join(f"{start + timedelta(hours=i)},{i % 24},{i % 7}\n" for i in range(60 * 24))
    (folder / "my.csv").write_text("date,a,b\n" + hours)
    odd = "".join(f"{start + timedelta(hours=i):%d.%m.%Y,%H:%M},{i % 24 + i % 5}\n" for i in range(30 * 24))
    (folder / "odd.csv").write_text(f"day,hour,load\n{odd}total,,9999\n")
    (folder / "sensor.csv").write_text("flow,heat\n" + "".join(f"{i % 60},{i % 7}\n" for i in range(6000)))
    (folder / "sales.csv").write_text("store,date,sales,price,holiday,visitors,region\n" + sales())
    (folder / "series").mkdir()
    weeks = "".join(f"{i},{1 + i % 52},{1 + i % 7}\n" for i in range(966))  # above 0, as the benchmark takes logarithms
    (folder / "series" / "national_illness.csv").write_text("date,a,b\n" + weeks)


def sales() -> str:
    """Rows of a long table, the last 28 days of each store without sales."""
    days = [date(2024, 1, 1) + timedelta(days=i) for i in range(120 + 28)]
    return "".join(
        f"{store},{day},{'' if i >= 120 else (i + len(store)) % 7 + 3},{i % 3},{'closed' if i % 30 == 0 else ''},"
        f"{'' if i >= 120 else i % 11},{region}\n"
        for store, region in (("one", "north"), ("three", "south"))
        for i, day in enumerate(days)
    )


def write_images(folder: Path) -> None:
    """Bright and dark noise: in a folder for each, and as the arrays of a .npz file."""
    rng = np.random.default_rng(0)
    for name, low in (("bright", 128), ("dark", 0)):
        (folder / "images" / name).mkdir(parents=True)
        for i in range(40):
            noise = rng.integers(low, low + 128, (40, 40, 3), dtype=np.uint8)
            Image.fromarray(noise).save(folder / "images" / name / f"{i}.png")
    (folder / "new").mkdir()
    for path in (folder / "new" / "a.png", folder / "cat.png"):
        shutil.copy(folder / "images" / "dark" / "0.png", path)
    labels = np.arange(40) % 2
    images = rng.integers(0, 128, (40, 32, 32, 3), dtype=np.uint8) + 128 * labels[:, None, None, None].astype(np.uint8)
    arrays = {"train_images": images, "train_labels": labels, "test_images": images[:20], "test_labels": labels[:20]}
    np.savez(folder / "cifar10.npz", **arrays)


def write_sounds(folder: Path) -> None:
    """Two tones, in a folder for each."""
    for name, tone in (("yes", 440.0), ("no", 880.0)):
        (folder / name).mkdir(parents=True)
        for i in range(20):
            wave = np.sin(2 * np.pi * tone * np.arange(800 + 10 * i) / 8000)
            wavfile.write(folder / name / f"{i}.wav", 8000, (wave * 20000).astype(np.int16))


def write_signals(folder: Path) -> None:
    """Sensors of boilers, a file for each, and visits of two kinds with a date for each sample."""
    rng = np.random.default_rng(0)
    for number in range(20):
        heat = rng.normal(size=400).cumsum()
        rows = "".join(f"{x:.3f},{y:.3f}\n" for x, y in zip(heat, 2 * heat, strict=True))
        path = folder / "boilers" / f"{number}.csv" if number else folder / "new-boilers.csv"
        path.parent.mkdir(exist_ok=True)
        path.write_text("heat,flow\n" + rows)
    for name in ("visits", "new-visits"):
        for kind in ("ill", "well"):
            (folder / name / kind).mkdir(parents=True)
            for number in range(20):
                days = [date(2024, 1, 1) + timedelta(days=int(day)) for day in rng.integers(1, 9, 30).cumsum()]
                values = "".join(f"{day},{rng.normal() + (kind == 'ill'):.3f}\n" for day in days)
                (folder / name / kind / f"{number}.csv").write_text("date,value\n" + values)


def write_books(folder: Path) -> None:
    """Texts of random words, each with words of its own."""
    folder.mkdir()
    for number in range(40):
        draw = random.Random(number)
        words = [f"{draw.choice('bcdfg')}{draw.choice('aeiou')}{number}{i}" for i in range(30)]
        (folder / f"{number}.txt").write_text(" ".join(draw.choices(words, k=20_000)))


def write_genes(folder: Path) -> None:
    """Sequences of two hosts: in a file for each, and with the name in their headers."""
    draw, records = random.Random(0), []
    (folder / "hosts").mkdir()
    for host, letters in (("swine", "ACGT"), ("human", "ACGG")):
        sequences = ["".join(draw.choices(letters, k=200)) for _ in range(60)]
        (folder / "hosts" / f"{host}.fa").write_text("".join(f">{i}\n{each}\n" for i, each in enumerate(sequences)))
        records += [f">{host}{i} [organism={host}]\n{each}\n" for i, each in enumerate(sequences)]
    for name in ("genes", "genome"):
        (folder / f"{name}.fa.gz").write_bytes(gzip.compress("".join(records).encode()))


def write_heartbeats(folder: Path) -> None:
    """MIT-BIH's records and annotations in their own format, of noise, one minute each. Nothing without wfdb."""
    try:
        import wfdb
    except ImportError:
        return
    folder.mkdir()
    rng = np.random.default_rng(0)
    beats = np.arange(200, 21_000, 300)
    symbols = [("N", "A", "V", "F")[i % 4] for i in range(len(beats))]
    form = {"fs": 360, "units": ["mV"] * 2, "sig_name": ["MLII", "V1"], "fmt": ["212"] * 2}
    for number in range(100, 235):
        samples = rng.normal(0, 0.3, (21_600, 2)).round(2)
        wfdb.wrsamp(
            str(number), p_signal=samples, adc_gain=[200.0] * 2, baseline=[0] * 2, write_dir=str(folder), **form
        )
        wfdb.wrann(str(number), "atr", beats, symbol=symbols, write_dir=str(folder))
