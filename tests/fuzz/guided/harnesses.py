"""Readers of people's files and of requests, as functions of bytes that return whatever the bytes are.

A reader may refuse with a ValueError or an OSError of one line, as in tests/fuzz/malformed.py. Anything else it raises
is a fault, and so are a crash, minutes and gigabytes. `make fuzz` lets Atheris look for one, guided by the branches
that an input takes (`python tests/fuzz/guided/harnesses.py NAME`); tests/fuzz/test_guided.py replays the corpus.
"""

from __future__ import annotations

import functools
import json
import sys
import tempfile
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

CORPUS = Path(__file__).with_name("corpus")
SUFFIXES = {
    "tables": (".csv", ".tsv", ".txt", ".ts", ".npz", ".parquet"),
    "lines": (".jsonl", ".json"),
    "archives": (".txt.gz", ".txt.bz2", ".txt.xz", ".txt.zip", ".txt.zst", ".csv.gz"),
    "recordings": (".wav", ".flac", ".ogg", ".mp3"),
}
LONGEST = 1000  # characters of a message


@functools.cache
def folder() -> Path:
    """A folder for this process's files."""
    return Path(tempfile.mkdtemp(prefix="lagwise-fuzz-"))


@contextmanager
def refusing() -> Iterator[None]:
    """Let a reader refuse, on one line."""
    try:
        yield
    except (ValueError, OSError) as error:
        if isinstance(error, UnicodeError) or "\n" in str(error) or not 0 < len(str(error)) < LONGEST:
            raise AssertionError(f"not a line for a person: {type(error).__name__} {error}") from error


def named(data: bytes, suffixes: tuple[str, ...]) -> Path:
    """A file of these bytes but for the first, which chooses how its name ends."""
    path = folder() / f"data{suffixes[data[0] % len(suffixes)] if data else suffixes[0]}"
    path.write_bytes(data[1:])
    return path


def tables(data: bytes) -> None:
    from lagwise.data.reading import read_columns, read_table
    from lagwise.forecasting import read_series

    path = named(data, SUFFIXES["tables"])
    for read in (read_table, read_columns, read_series):
        with refusing():
            read(path)


def times(data: bytes) -> None:
    import pandas as pd

    from lagwise.forecasting.times import plain_times, regular_times

    cells = data.decode("utf-8", "replace").splitlines()
    with refusing():
        plain_times(regular_times(pd.Series(cells, name="time", dtype=object)).grid.times[:1000])


def lines(data: bytes) -> None:
    from lagwise.data import open_rows, open_source
    from lagwise.data.reading import read_table

    path = named(data, SUFFIXES["lines"])
    with refusing():
        read_table(path)
    with refusing():
        open_rows(str(path)).read()
    with refusing():
        source = open_source(str(path))
        for _ in zip(source.documents("train"), range(5), strict=False):
            pass


def archives(data: bytes) -> None:
    from lagwise.data.reading import opened, read_text

    path = named(data, SUFFIXES["archives"])
    with refusing(), opened(path) as file:
        file.read(1 << 20)
    with refusing():
        next(read_text(path), None)


def recordings(data: bytes) -> None:
    from lagwise.data.series_files import read_sound

    path = named(data, SUFFIXES["recordings"])
    with refusing():
        read_sound(data[1:], path)


def recipes(data: bytes) -> None:
    from lagwise.training import check_recipe, load_recipe

    path = folder() / "recipe.yaml"
    path.write_bytes(data)
    with refusing():
        check_recipe(load_recipe(str(path)))


@functools.cache
def saved() -> tuple[bytes, bytes]:
    """Configuration and weights of a small model."""
    from lagwise.models import LagwiseConfig, LagwiseForCausalLM

    LagwiseForCausalLM(LagwiseConfig(vocab_size=8, hidden_size=4, num_hidden_layers=1)).save_pretrained(
        folder() / "run"
    )
    return tuple((folder() / "run" / name).read_bytes() for name in ("config.json", "model.safetensors"))  # type: ignore[return-value]


def weights(data: bytes) -> None:
    """A saved model with another configuration, another header of its weights, or its header changed at one place."""
    from lagwise.models import load_model

    config, tensors = saved()
    kind, rest = (data[:1] or b"\0")[0] % 3, data[1:]
    size = int.from_bytes(tensors[:8], "little")
    if kind == 0:
        config = rest
    elif kind == 1:
        tensors = len(rest).to_bytes(8, "little") + rest + tensors[8 + size :]
    else:
        place = int.from_bytes(rest[:2], "little") % (8 + size)
        tensors = tensors[:place] + rest[2:] + tensors[place + len(rest[2:]) :]
    (folder() / "run" / "config.json").write_bytes(config)
    (folder() / "run" / "model.safetensors").write_bytes(tensors)
    with refusing():
        load_model(folder() / "run")


def server() -> Any:
    """The application of a server of a small model, not started."""
    from lagwise.data import load_tokenizer
    from lagwise.models import LagwiseConfig, LagwiseForCausalLM
    from lagwise.serving.app import make_app
    from lagwise.serving.scheduler import Scheduler

    model = LagwiseForCausalLM(LagwiseConfig(vocab_size=258, hidden_size=4, num_hidden_layers=1)).eval()
    scheduler = Scheduler(model, load_tokenizer("bytes"), rows=2, queue=4, max_tokens=16)
    return make_app(scheduler, "m")


@functools.cache
def client() -> Any:
    from fastapi.testclient import TestClient

    return TestClient(server(), raise_server_exceptions=True).__enter__()


def bodies(data: bytes) -> None:
    paths = ("/v1/completions", "/v1/chat/completions", "/v1/embeddings")
    path = paths[data[0] % len(paths)] if data else paths[0]
    answer = client().post(path, content=data[1:], headers={"content-type": "application/json"})
    assert answer.status_code < 500 or answer.status_code == 503, (answer.status_code, answer.text)
    if answer.status_code >= 400:
        assert answer.json()["error"]["message"]
    elif not answer.headers["content-type"].startswith("text/event-stream"):
        json.loads(answer.text)


HARNESSES: dict[str, Callable[[bytes], None]] = {
    each.__name__: each for each in (tables, times, lines, archives, recordings, recipes, weights, bodies)
}


def main(arguments: list[str]) -> None:
    """Fuzz one reader. Further arguments are libFuzzer's, such as -max_total_time=120; new inputs and failures go to
    build/fuzz."""
    import atheris

    warnings.simplefilter("ignore")
    name, *options = arguments
    new = Path("build", "fuzz", name)
    new.mkdir(parents=True, exist_ok=True)
    with atheris.instrument_imports(include=["lagwise"]):
        HARNESSES[name]((CORPUS / name / "1").read_bytes())  # which imports what it reads with
    usual = ["-timeout=60", "-max_len=4096", "-rss_limit_mb=6000", f"-artifact_prefix={new.parent}/{name}-failure-"]
    atheris.Setup([name, *usual, *options, str(new), str(CORPUS / name)], HARNESSES[name])
    atheris.Fuzz()


if __name__ == "__main__":
    main(sys.argv[1:])
