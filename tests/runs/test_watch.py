"""Lines beside a model that has learned others like them: scores, threshold, states, and what goes wrong."""

from __future__ import annotations

import errno
import io
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from typer.testing import CliRunner

from lagwise.cli.main import app
from lagwise.data import load_tokenizer
from lagwise.models import LagwiseConfig, LagwiseForCausalLM
from lagwise.runs import watch as watching
from lagwise.runs.watch import LONGEST, Watch, conformal_threshold, cut, watch_run
from lagwise.training.recipe import load_recipe


def lines_of(count: int, seed: int) -> list[bytes]:
    """Exchangeable lines, some of which are rare."""
    random = np.random.default_rng(seed)
    rare = random.geometric(0.3, (count, 2))
    return [f'{{"host": "h{a % 3}", "event": "{"abcdefghij"[min(b, 9)]}"}}'.encode() for a, b in rare.tolist()]


def as_file(lines: list[bytes], path: Path) -> Path:
    path.write_bytes(b"".join(line + b"\n" for line in lines))
    return path


def saved(folder: Path, recipe: str = "best-lm", steps: int = 0, **fields: Any) -> Path:
    """A model that has learned lines for some steps."""
    torch.manual_seed(0)
    model = LagwiseForCausalLM(LagwiseConfig(**{**load_recipe(recipe).model, "hidden_size": 24, **fields}))
    ids = torch.tensor([[256, *b"".join(line + b"\n" for line in lines_of(400, seed=0))]])
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    for step in range(steps):
        part = ids[:, 200 * step :][:, :512]
        model(part, labels=part).loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    model.save_pretrained(folder)
    load_tokenizer("bytes").save_pretrained(folder)
    return folder


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return saved(tmp_path_factory.mktemp("runs") / "run", steps=30, ngram_buckets=64)


@pytest.fixture(scope="module")
def held_out(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return as_file(lines_of(99, seed=1), tmp_path_factory.mktemp("lines") / "held-out.log")


@pytest.fixture
def opened(run: Path, held_out: Path) -> Any:
    return lambda **options: Watch(run, **{"alarms": 0.05, "calibrate": held_out, **options})


def test_an_exchangeable_score_exceeds_the_threshold_at_most_as_often_as_asked() -> None:
    """Also of scores with ties, whatever their number; and not much more seldom, without ties."""
    random = np.random.default_rng(0)
    for count, alarms in ((19, 0.05), (30, 0.05), (199, 0.1), (1000, 0.001)):
        for ties in (0, 3):
            draws = random.random((4000, count + 1)) if not ties else random.integers(0, ties, (4000, count + 1))
            exceeded = np.mean([row[-1] > conformal_threshold(row[:-1], alarms) for row in draws])
            error = 4 * (alarms * (1 - alarms) / 4000) ** 0.5
            assert exceeded <= alarms + error
            assert ties or exceeded >= alarms - 1 / (count + 1) - error
    with pytest.raises(ValueError, match=r"at least 9,999 held-out lines for calibration, got 180: .*0\.0055 or more"):
        conformal_threshold(np.zeros(180), 1e-4)


def test_alarms_of_lines_like_those_held_out_are_as_many_as_asked(run: Path, tmp_path: Path) -> None:
    """Scores of a model, with all lines before as context."""
    calibrate = as_file(lines_of(999, seed=2), tmp_path / "held-out.log")
    watch = Watch(run, alarms=0.05, calibrate=calibrate)
    rows = watch.surprises(lines_of(1000, seed=3))
    # The rate given these held-out lines has a beta distribution of 950 and 50; the alarms are binomial beside it.
    error = 3 * (0.05 * 0.95 * (1 / 1000 + 1 / 1000)) ** 0.5
    assert abs(np.mean([row["alarm"] for row in rows]) - 0.05) < error
    assert all(row["alarm"] == (row["p"] <= 0.05) for row in rows)
    watch.measure([b"no such line was there"])
    assert watch.surprises([b"\xff\x00" * 20])[0]["alarm"]


def test_scores_are_those_of_the_whole_text(opened: Any, held_out: Path) -> None:
    """In blocks of any size, and of separate streams each alone."""
    lines, watch = lines_of(40, seed=4), opened()
    text = held_out.read_bytes() + b"".join(line + b"\n" for line in lines)
    ids = torch.tensor([[256, *text]])
    with torch.no_grad():
        nats = F.cross_entropy(watch.model(ids[:, :-1]).logits[0], ids[0, 1:], reduction="none")
    sizes = [len(line) + 1 for line in lines]
    parts = nats[-sum(sizes) :].split(sizes)
    expected = [float(part.mean()) / np.log(2) for part in parts]
    several = opened()
    scores = [score for i in range(0, 40, 7) for score in several.measure(lines[i : i + 7])]
    np.testing.assert_allclose(watch.measure(lines), expected, rtol=1e-4)
    np.testing.assert_allclose(scores, expected, rtol=1e-4)

    by_host, only = opened(by="host"), opened(by="host")
    chosen = [i for i, line in enumerate(lines) if b'"h1"' in line]
    together = by_host.measure([b"[]", *lines, b"\xff"])[1:-1]
    alone = only.measure([lines[i] for i in chosen])
    np.testing.assert_allclose([together[i] for i in chosen], alone, rtol=1e-4)


@pytest.mark.parametrize("options", [{}, {"by": "host"}, {"learn": 1e-3}], ids=["one", "by", "learn"])
def test_a_state_continues_exactly(opened: Any, tmp_path: Path, options: dict[str, Any]) -> None:
    lines, state = lines_of(60, seed=5), tmp_path / "new" / "watch.state"
    state.parent.mkdir()
    watch = opened(**options, state=state)  # there is none yet
    weights = {name: value.clone() for name, value in watch.model.state_dict().items()}
    watch.surprises(lines[:30])
    watch.save(state)
    again = opened(**options, state=state, calibrate=None)  # nor is there text of the run's own
    assert again.threshold == watch.threshold
    rows = [each.surprises(lines[30:]) for each in (watch, again)]
    assert [row["line"] for row in rows[1]] == [*range(31, 61)]
    scores = [[row["bits_per_byte"] for row in each] for each in rows]
    np.testing.assert_allclose(scores[1], scores[0], rtol=1e-5)
    changed = any(not torch.equal(value, weights[name]) for name, value in again.model.state_dict().items())
    assert changed == ("learn" in options)
    if not options:
        with pytest.raises(ValueError, match="is of another field; give another `state`"):
            opened(by="host", state=state)
        state.write_bytes(b"no state")
        with pytest.raises(ValueError, match="is not a state that can be continued"):
            opened(state=state)


def test_streams_are_as_many_as_fit(opened: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watching, "MAX_STREAMS", 4)
    watch = opened(by="id", alarms=0.5)
    for i in range(9):
        watch.measure([f'{{"id": {i}}}'.encode()])
    assert len(watch.carried.caches) == 4
    before = watch.measure([b'{"id": 8}'])
    assert before != watch.measure([b'{"id": 1}'])  # begins anew


def test_lines_of_any_size_are_cut_in_constant_memory() -> None:
    part = b"x" * 2**20
    chunks = [b"first\nsec", b"ond\n", *[part] * 100, b"\n\nlast"]
    lines = [line for found in cut(chunks) for line in found]
    assert [(line.text[:9], line.size) for line in lines] == [
        (b"first", 5),
        (b"second", 6),
        (b"x" * 9, 100 * 2**20),
        (b"", 0),
        (b"last", 4),
    ]
    assert len(lines[2].text) == LONGEST


def test_binary_and_long_lines_lose_nothing(opened: Any, tmp_path: Path) -> None:
    usual = lines_of(3, seed=6)
    data = b"\n".join([usual[0], bytes(b for b in range(256) if b != 10), usual[1], b"y" * 200_000, usual[2]])
    (tmp_path / "lines").write_bytes(data)
    rows: list[dict[str, Any]] = []
    reports: list[str] = []
    with (tmp_path / "lines").open("rb") as file:
        watch_run(opened(), file.fileno(), rows.extend, report=reports.append)
    assert reports == ["line 4 has 200,000 bytes, of which the first 65,536 are scored"]
    assert rows[1]["alarm"]
    assert [row["text"].encode() for row in rows[::2]] == usual
    assert rows[1]["text"].endswith("\\xff")
    assert np.isfinite([row["bits_per_byte"] for row in rows]).all()


def test_a_closed_pipe_and_a_full_disk_lose_nothing(
    opened: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What could not be written is scored again, by the state before."""
    lines, state = lines_of(8, seed=7), tmp_path / "watch.state"
    log = as_file(lines, tmp_path / "growing.log")
    monkeypatch.setattr(watching, "_READ", len(lines[0]) + 1)
    expected = opened().measure(lines)

    rows: list[dict[str, Any]] = []

    def until(count: int, error: BaseException) -> Any:
        def write(new: list[dict[str, Any]]) -> None:
            if len(rows) >= count:
                raise error
            rows.extend(new)

        return write

    for count in (2, 5):
        with pytest.raises(BrokenPipeError):
            watch_run(opened(state=state), log, until(count, BrokenPipeError()), state=state, report=print)

    def full(*args: object, **options: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    kept, reports = state.read_bytes(), []
    with monkeypatch.context() as patch:
        patch.setattr(watching, "save_file", full)
        patch.setattr(watching, "_SAVE_SECONDS", 0)
        with pytest.raises(OSError, match=r"cannot save watch\.state in .*No space left"):
            watch_run(opened(state=state), log, until(7, KeyboardInterrupt()), state=state, report=reports.append)
    assert "No space left" in reports[0]
    assert "the state before stays" in reports[0]
    assert state.read_bytes() == kept
    done = [row["line"] for row in rows]
    assert sorted(set(done)) == [*range(1, done[-1] + 1)]

    def sleep(seconds: float) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(watching.time, "sleep", sleep)
    with pytest.raises(KeyboardInterrupt):
        watch_run(opened(state=state), log, rows.extend, state=state, report=print)
    scores = {row["line"]: row["bits_per_byte"] for row in rows}
    np.testing.assert_allclose([scores[i + 1] for i in range(8)], expected, rtol=1e-4)


def test_a_file_is_followed_also_when_another_takes_its_place(
    opened: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log, lines = tmp_path / "log", lines_of(6, seed=8)
    as_file(lines[:2], log)

    def append(data: bytes) -> None:
        with log.open("ab") as file:
            file.write(data)

    steps = iter(
        [
            lambda: append(lines[2] + b"\n" + lines[3][:5]),
            lambda: append(lines[3][5:]),
            lambda: (log.rename(tmp_path / "log.1"), as_file(lines[4:5], log)),
            lambda: log.write_bytes(lines[5][:9] + b"\n"),  # cut and shorter
        ]
    )

    def sleep(seconds: float) -> None:
        step: Any = next(steps, None)
        if step is None:
            raise KeyboardInterrupt
        step()

    monkeypatch.setattr(watching.time, "sleep", sleep)
    texts: list[str] = []
    with pytest.raises(KeyboardInterrupt):
        watch_run(opened(), log, lambda rows: texts.extend(row["text"] for row in rows), report=print)
    assert [text.encode() for text in texts] == [*lines[:5], lines[5][:9]]


def test_a_model_whose_state_grows_is_refused(tmp_path: Path) -> None:
    run = saved(tmp_path / "run", "transformer-alibi-lm", num_hidden_layers=1)
    result = CliRunner().invoke(app, ["watch", str(run), "--alarms", "0.5"])
    assert "a stream needs states of constant size" in str(result.exception)


def test_samples_are_watched_beside_their_predictions(tmp_path: Path) -> None:
    """A run of the command; scores are those of the whole signal's predictions, in any parts and with a state."""
    x = np.sin(np.arange(3000) / 5)[:, None] * [1, 20] + np.random.default_rng(0).normal(size=(3000, 2)) * 0.01
    lines = [f"{a:.6g},{b:.6g}".encode() for a, b in x]
    records = [f'{{"b": {b:.6g}, "of": "it", "a": {a:.6g}}}'.encode() for a, b in x[2400:]]
    records[100] = b'{"of": "it", "a": 0, "b": 100}'
    (log := tmp_path / "machine.csv").write_bytes(b"\n".join([b"a,b", *lines[:2400]]))
    task = ["task.ahead=3", "task.stride=3", "task.delay=0", "task.window=0", "task.loss=mse", "data.length=99"]
    size = ["model.hidden_size=8", "model.num_hidden_layers=1", "training.steps=40", "training.evaluate_every=40"]
    words = ["train", "--recipe", "denoise", "--data", str(log), "--out", str(tmp_path / "run"), *task, *size]
    result = CliRunner().invoke(app, words)
    assert result.exit_code == 0, result.output
    state = tmp_path / "watch.state"
    watch = Watch(tmp_path / "run", alarms=0.01, by="of", state=state)
    assert len(watch.scores) == 240  # the last tenth
    model: Any = watch.model
    samples = torch.tensor([[json.loads(record)[name] for name in "ab"] for record in records])
    with torch.no_grad():
        predicted = model(input_values=samples[None]).regression_outputs[0]
    errors = ((samples[3:] - predicted[:-3]) / torch.tensor(model.outputs.std)).abs().amax(1)
    scores = [score for i in range(0, 200, 50) for score in watch.measure(records[i : i + 50])]
    rows = watch.surprises(records[200:])
    scores += [row["deviations"] for row in rows]
    np.testing.assert_allclose(scores, [0, 0, 0, *errors], rtol=1e-3, atol=1e-5)
    assert scores[100] > watch.threshold
    watch.save(state)
    again = Watch(tmp_path / "run", alarms=0.01, by="of", state=state)
    bad = [b"a,b", b"", b"1,\xff", b"1e300,1", b'{"a": 1, "b": null}', b"1,2,3"]
    more = [*bad, *lines[:9], *records[:9]]
    assert again.measure(more) == pytest.approx(watch.measure(more), rel=1e-4)
    assert np.isinf(watch.measure(bad)).tolist() == [True, True, True, True, False, True]
    assert watching.written(watch.surprises(bad[:1])).split()[0::2] == ["inf", "ALARM"]
    with pytest.raises(ValueError, match="only a language model can `learn`"):
        Watch(tmp_path / "run", learn=1e-3)


def test_a_run_without_text_says_how_to_calibrate(run: Path, held_out: Path) -> None:
    with pytest.raises(ValueError, match="give held-out lines as `calibrate`"):
        Watch(run)
    with pytest.raises(ValueError, match=r"at least 999 held-out lines for calibration, got 99: .* 0\.01 or more"):
        Watch(run, calibrate=held_out)


@pytest.fixture
def command(run: Path, held_out: Path, tmp_path: Path) -> Iterator[Any]:
    """Start the command with options."""
    started: list[Any] = []

    def start(*words: str, **streams: Any) -> Any:
        options = ["--alarms", "0.05", "--calibrate", str(held_out), *words]
        process: Any = subprocess.Popen([sys.executable, "-m", "lagwise", "watch", str(run), *options], **streams)
        started.append(process)
        return process

    yield start
    for process in started:
        process.kill()
        process.wait()


@pytest.mark.slow
@pytest.mark.skipif(os.name != "posix", reason="needs signals")
def test_a_killed_command_continues(command: Any, tmp_path: Path) -> None:
    """After SIGTERM with nothing twice, after SIGKILL with nothing lost."""
    lines, log, state = lines_of(30, seed=9), tmp_path / "log", tmp_path / "log.state"
    as_file(lines[:10], log)
    numbers: list[list[int]] = []
    for number, more in ((signal.SIGTERM, lines[10:20]), (signal.SIGKILL, lines[20:]), (signal.SIGINT, [])):
        process = command(str(log), "--json", "--state", str(state), stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        count = len(log.read_bytes().splitlines()) - (numbers[0][-1] if numbers else 0)
        numbers.append([json.loads(process.stdout.readline())["line"] for _ in range(count)])
        process.send_signal(number)
        output, error = process.communicate(timeout=60)
        assert not output
        assert process.returncode == {signal.SIGTERM: 143, signal.SIGKILL: -9, signal.SIGINT: 130}[number], error
        with log.open("ab") as file:
            file.write(b"".join(line + b"\n" for line in more))
    assert numbers == [[*range(1, 11)], [*range(11, 21)], [*range(11, 31)]]


@pytest.mark.slow
@pytest.mark.skipif(os.name != "posix", reason="needs pipes of a shell")
def test_a_reader_that_closes_the_pipe_is_no_failure(command: Any) -> None:
    process = command(stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    data = io.BytesIO(b"".join(line + b"\n" for line in lines_of(500, seed=10)))
    process.stdin.write(data.read(100))
    process.stdin.flush()
    assert process.stdout.readline()
    process.stdout.close()
    with suppress(BrokenPipeError):
        process.stdin.write(data.read())
        process.stdin.close()
    assert process.wait(60) == 1
    assert "error" not in process.stderr.read().decode()
