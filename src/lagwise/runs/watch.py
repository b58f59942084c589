"""Streams of lines, such as logs or samples, beside a model that predicts them: how surprising each line is, with a
calibrated threshold."""

from __future__ import annotations

import json
import math
import os
import signal
import time
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, nullcontext
from functools import partial
from itertools import islice
from pathlib import Path
from types import FrameType
from typing import Any, NamedTuple

import numpy as np
import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import load_file, save_file

from lagwise.data import open_source
from lagwise.data.tokenizers import encode_texts, spellings
from lagwise.files import RECIPE_FILE, file_digest, lock, one_line, saved_whole
from lagwise.models.cache import CarriedStates
from lagwise.models.causal_lm import LagwiseForCausalLM
from lagwise.models.loading import load_model
from lagwise.models.signal_regression import LagwiseForSignalRegression
from lagwise.models.signal_stream import StreamingRegressor
from lagwise.process import Stopped
from lagwise.progress import progress_bar
from lagwise.runs.evaluate import open_run, require_unchanged
from lagwise.training import load_run, make_task
from lagwise.training.dynamic import SEGMENT, OnlineLearner, token_nats
from lagwise.training.optimizer import sparse_tables
from lagwise.training.recipe import TrainingOptions

LONGEST = 65_536  # bytes of a line that are scored; the others are counted
MAX_STREAMS = 256  # the stream that has been silent for longest is forgotten
_TOKENS_AT_ONCE = 4096
_READ = 16_384  # bytes of input at once: the work that a signal waits for
_POLL_SECONDS, _SAVE_SECONDS = 0.25, 60.0
_LARGEST = 1e6  # standard deviations from the mean: a sample beyond could overflow the states
_CALIBRATION = 10  # times the lines without which no threshold keeps the asked rate


class Line(NamedTuple):
    """The first `LONGEST` bytes of a line, without its end, and the size of the whole line in bytes."""

    text: bytes
    size: int


def cut(chunks: Iterable[bytes]) -> Iterator[list[Line]]:
    """Yield the lines that each chunk of a text completes, and at its end what is left, in constant memory."""
    text, size = b"", 0
    for chunk in chunks:
        lines = []
        for i, part in enumerate(chunk.split(b"\n")):
            if i:
                lines.append(Line(text, size))
                text, size = b"", 0
            text, size = text + part[: LONGEST - len(text)], size + len(part)
        yield lines
    yield [Line(text, size)] if size else []


def conformal_threshold(scores: np.ndarray, alarms: float) -> float:
    """The threshold that a new score exceeds with a probability of at most ``alarms``, if it and the n given scores
    are exchangeable: the k-th smallest of them, where ``k = ceil((1 - alarms)(n + 1))``.

    ValueError for fewer than ``1 / alarms - 1`` scores, with which no threshold keeps the rate.

    Source: split conformal prediction, Vovk et al. 2005; Lei et al. 2018, §2.2.
    """
    rank = math.ceil((1 - alarms) * (len(scores) + 1) - 1e-9)
    if rank > len(scores):
        raise ValueError(
            f"{alarms:g} alarms a line need at least {_needed(alarms):,} held-out lines for calibration, got "
            f"{len(scores):,}: give `alarms` of {1 / (len(scores) + 1):.2g} or more, or more lines as `calibrate`"
        )
    return float(np.partition(scores, rank - 1)[rank - 1])


def _needed(alarms: float) -> int:
    return math.ceil(1 / alarms - 1 - 1e-9)


class Watch:
    """Scores the lines of streams, each with all of its stream before it as context, in constant memory.

    The score of a line is, by a language model, its bits per byte, its end included. By a model of signals that
    predicts samples ahead, a line is a sample, numbers or a JSON record of them, and its score is the largest distance
    from its prediction, in standard deviations of the training data: 0 where nothing is predicted yet or the sample is
    missing. It is infinite for a line without the numbers of a sample, which the model reads as a missing one.

    An alarm is a score over the threshold of held-out lines (`conformal_threshold`), which are scored first and in the
    same way.

    Args:
        run: Folder of a language model, or of a run of `SignalToSignal` with ``ahead``. The model must stream in
            constant memory.
        alarms: Alarms per line, at most, among lines like those of the calibration.
        calibrate: A file of held-out lines; by default the test split of the run's own data.
        by: A field of JSON lines: those with different values are separate streams, and those without it are one.
        learn: Learning rate at which a language model learns from the lines that it has scored (`OnlineLearner`).
        state: A file to continue from, if it exists, instead of a calibration.

    Raises:
        ValueError: For another model, too few held-out lines, or a file that is not a state of this run.
    """

    def __init__(
        self,
        run: Path,
        *,
        alarms: float = 1e-3,
        calibrate: Path | None = None,
        by: str | None = None,
        learn: float | None = None,
        state: Path | None = None,
        progress: bool = False,
    ):
        model, tokenizer = load_model(run)
        of_signals = isinstance(model, LagwiseForSignalRegression)
        self._reader: Any = _Samples(run, model, learn) if of_signals else _Text(run, model, tokenizer, learn)
        self.model, self.carried, self.learner = model, self._reader.carried, self._reader.learner
        self._streams: OrderedDict[str | None, tuple[int, Any]] = OrderedDict()  # row and memory; the latest last
        self.lines, self._rows = 0, 0  # so far
        self.position: dict[str, int] = {}  # of the next line in a file: `device`, `inode` and `offset`
        weights = file_digest(Path(run) / "model.safetensors").hex()
        self._own = {"model": weights, "field": by, "learning rate": learn}
        self.by, self.scores = by, np.empty(0)
        if state is not None and state.exists():
            self._load(state)
        else:
            held_out = self._reader.held_out(run) if calibrate is None else _lines_of(calibrate)
            lines = [*islice(held_out, _CALIBRATION * (_needed(alarms) + 1))]
            conformal_threshold(np.zeros(len(lines)), alarms)  # whether they are enough
            with progress_bar(desc="calibrating", total=len(lines), unit="line", show=progress) as bar:
                for i in range(0, len(lines), 100):
                    self.scores = np.append(self.scores, self.measure(lines[i : i + 100]))
                    bar.update(len(lines[i : i + 100]))
            self.scores.sort()
            if of_signals:  # the samples of today do not follow those that were held out
                self._streams.clear()
                self.carried.caches.clear()
        self.threshold = conformal_threshold(self.scores, alarms)

    def measure(self, lines: Sequence[bytes]) -> list[float]:
        """Score lines, which follow those before. Infinite where the model gives NaN."""
        streams: dict[str | None, list[int]] = {}
        for i, line in enumerate(lines):
            streams.setdefault(self._stream_of(line), []).append(i)
        scores = [0.0] * len(lines)
        for name, indices in streams.items():
            begins = name not in self._streams
            if begins and len(self._streams) == MAX_STREAMS:
                del self.carried.caches[self._streams.popitem(last=False)[1][0]]
            row, memory = self._streams.pop(name, (self._rows, None))
            self._rows += begins
            found, memory = self._reader.read(row, memory, [lines[i] for i in indices])
            self._streams[name] = row, memory
            for i, score in zip(indices, found, strict=True):
                scores[i] = score if math.isfinite(score) else math.inf
        return scores

    def surprises(self, lines: Sequence[bytes]) -> list[dict[str, Any]]:
        """Score lines. Returns for each its number ``line``, the score, ``bits_per_byte`` or ``deviations``,
        ``threshold``, ``alarm``, ``p``, the share of held-out lines, and itself, with at least this score, and
        ``text``."""
        rows = []
        for line, score in zip(lines, self.measure(lines), strict=True):
            self.lines += 1
            above = len(self.scores) + 1 - int(np.searchsorted(self.scores, score))
            row = {"line": self.lines, self._reader.score: score, "threshold": self.threshold}
            row |= {"alarm": score > self.threshold, "p": above / (len(self.scores) + 1)}
            rows.append({**row, "text": line.decode(errors="backslashreplace")})
        return rows

    def _stream_of(self, line: bytes) -> str | None:
        record = None if self.by is None else _record(line)
        return None if record is None or self.by not in record else json.dumps(record[self.by])

    def score(self, lines: Sequence[bytes], write: Callable[[list[dict[str, Any]]], None]) -> None:
        """Score lines and write their `surprises`. If writing fails, they have not been read: all but what was learned
        is as it was before."""
        before = dict(self.carried.caches), self._streams.copy(), self.lines
        try:
            write(self.surprises(lines))
        except BaseException:
            self.carried.caches, self._streams, self.lines = before
            raise

    def save(self, path: Path) -> None:
        """Write all that continuing needs to a file, which only a complete one replaces. OSError if it cannot be."""
        tensors = {**self.carried.tensors(), "scores": torch.from_numpy(self.scores)}
        tensors |= {} if self.learner is None else self.learner.tensors()
        about: dict[str, Any] = {"own": self._own, "place": self.position, "lines": self.lines, "rows": self._rows}
        about["streams"] = [*self._streams.items()]
        with saved_whole(path.parent, path.name) as partial:
            save_file(tensors, partial / path.name, metadata={"watch": json.dumps(about)})

    def _load(self, path: Path) -> None:
        try:
            with safe_open(path, "pt") as file:
                about = json.loads((file.metadata() or {})["watch"])
            tensors = load_file(path)
        except (SafetensorError, OSError, RuntimeError, ValueError, KeyError) as error:
            raise ValueError(f"{str(path)!r} is not a state that can be continued ({one_line(error)})") from error
        if wrong := [name for name, value in self._own.items() if about["own"].get(name) != value]:
            raise ValueError(f"{str(path)!r} is of another {' and '.join(wrong)}; give another `state`, or remove it")
        self.scores = tensors.pop("scores").numpy()
        if self.learner is not None:
            self.learner.restore(tensors)
        self.carried.restore({n: t for n, t in tensors.items() if n.partition(":")[0].isdecimal()})
        self._streams = OrderedDict((name, tuple(stream)) for name, stream in about["streams"])
        self.lines, self._rows, self.position = about["lines"], about["rows"], about["place"]


def _record(line: bytes) -> dict[str, Any] | None:
    try:
        record = json.loads(line)
    except (ValueError, RecursionError):
        return None
    return record if isinstance(record, dict) else None


def _lines_of(path: Path) -> Iterator[bytes]:
    with open(path, "rb") as file:
        for lines in cut(iter(lambda: file.read(_READ), b"")):
            yield from (line.text for line in lines)


class _Text:
    """A reader of lines of text beside a language model. A stream's memory is its last token."""

    score = "bits_per_byte"

    def __init__(self, run: Path, model: Any, tokenizer: Any, learn: float | None):
        if not isinstance(model, LagwiseForCausalLM):
            raise ValueError(f"{str(run)!r} is a {type(model).__name__}, which predicts no lines; see `predict`")
        self.model, self.tokenizer = model, tokenizer
        self.carried = CarriedStates(model, "a stream", changes=learn is not None)
        self._as_bytes = spellings(tokenizer)[:256] == [bytes([i]) for i in range(256)]
        self._tables = ExitStack()
        if learn is not None:
            self._tables.enter_context(sparse_tables(model, TrainingOptions()))
        self.learner = None if learn is None else OnlineLearner(model, learn)

    def held_out(self, run: Path) -> Iterator[bytes]:
        """The lines of the test split of a run's own text."""
        if not (run / RECIPE_FILE).is_file():
            raise ValueError(f"{str(run)!r} is a model without text of its own; give held-out lines as `calibrate`")
        recipe = load_run(run)
        require_unchanged(run, recipe)
        for document in open_source(make_task(recipe).source).documents("test"):
            yield from (line.encode() for line in document.removesuffix("\n").split("\n"))

    def read(self, row: int, last: int | None, lines: Sequence[bytes]) -> tuple[list[float], int]:
        ids = [self._encoded(line) for line in lines]
        first: Any = self.tokenizer.eos_token_id if last is None else last
        tokens, parts = torch.from_numpy(np.concatenate([[first], *ids])), []
        size = _TOKENS_AT_ONCE if self.learner is None else SEGMENT
        nats = partial(token_nats, self.model) if self.learner is None else self.learner.nats
        with torch.inference_mode() if self.learner is None else nullcontext():
            for start in range(0, len(tokens) - 1, size):
                cache = self.carried.before(row)
                parts.append(nats(tokens[:-1][start : start + size], tokens[1:][start : start + size], cache))
                self.carried.after(row, cache)
        by_line = torch.cat(parts).double().split([len(each) for each in ids])
        scores = [float(part.sum()) / math.log(2) / (len(line) + 1) for part, line in zip(by_line, lines, strict=True)]
        return scores, int(tokens[-1])

    def _encoded(self, line: bytes) -> np.ndarray:
        if self._as_bytes:
            return np.frombuffer(line + b"\n", dtype=np.uint8).astype(np.int64)
        return encode_texts([line.decode(errors="replace") + "\n"], self.tokenizer, False)[0]


class _Samples:
    """A reader of samples beside a model that predicts them. A stream's memory is the samples of its incomplete step,
    and the predictions of the next samples."""

    score, learner = "deviations", None

    def __init__(self, run: Path, model: Any, learn: float | None):
        self.task: Any = open_run(run)[1]
        if not getattr(self.task, "ahead", 0):
            raise ValueError(
                f"{str(run)!r} predicts no samples, so none can surprise it; train with the task's `ahead`"
            )
        if learn is not None:
            raise ValueError("only a language model can `learn` from what it has scored")
        self.carried, self.stream = CarriedStates(model, "a stream", changes=False), StreamingRegressor(model)
        self.mean, self.deviations = torch.tensor(model.outputs.mean or 0.0), torch.tensor(model.outputs.std or 1.0)

    def held_out(self, run: Path) -> Iterator[bytes]:
        """The samples of the test split of a run's own signals, one after the other."""
        require_unchanged(run, load_run(run))
        data: Any = self.task.open(run=run, progress=False)
        for whole in data.signals["test"]:
            yield from (" ".join(map(str, sample)).encode() for sample in whole.inputs.tolist())

    @torch.inference_mode()
    def read(self, row: int, memory: list[Any] | None, lines: Sequence[bytes]) -> tuple[list[float], list[Any]]:
        stream, width = self.stream, self.stream.features
        missing = [math.nan] * width
        read = [self._sample(line) for line in lines]
        x = torch.tensor([missing if sample is None else sample for sample in read])
        wrong = ((x - self.mean).abs() > _LARGEST * self.deviations).any(1)
        x[wrong] = math.nan
        wrong |= torch.tensor([sample is None for sample in read])
        if memory is None and read[0] is None:
            wrong[0] = False  # names of columns
        waiting, predicted = memory or ([], [missing] * self.task.ahead)
        stream.cache, stream.waiting = self.carried.before(row), torch.tensor(waiting).reshape(-1, width)
        y = torch.cat([torch.tensor(predicted), stream.push(x).nan_to_num(math.inf, math.inf, -math.inf)])
        self.carried.after(row, stream.cache)
        errors = ((x - y[: len(x)]) / self.deviations).abs()
        scores = errors.masked_fill(errors.isnan(), 0).amax(1).masked_fill(wrong, math.inf)
        return scores.tolist(), [stream.waiting.tolist(), y[len(x) :].tolist()]

    def _sample(self, line: bytes) -> list[float] | None:
        """The numbers of a line, NaN where one is missing; None if it has others than those of a sample."""
        record = _record(line)
        try:
            if record is not None:
                cells = [record.get(name) for name in self.task.features or record]
            else:
                cells = line.split(b",") if b"," in line else line.split() or [b""]
            sample = [math.nan if cell is None or cell in (b"", b"NA") else float(cell) for cell in cells]
        except (TypeError, ValueError):
            return None
        return sample if len(sample) == self.stream.features else None


class _Stop:
    """Raises `Stopped` on Ctrl-C or SIGTERM while ``waiting``, or at a second signal; else keeps its number."""

    number, waiting = 0, False

    def __call__(self, number: int, frame: FrameType | None) -> None:
        again, self.number = self.number, number
        if self.waiting or again:
            raise Stopped(number)

    def wait(self, call: Callable[[], Any]) -> Any:
        """Call what waits. A signal that has come before it ends it too."""
        self.waiting = True
        if self.number:
            raise Stopped(self.number)
        result, self.waiting = call(), False
        return result


def watch_run(
    watch: Watch,
    source: Path | int,
    write: Callable[[list[dict[str, Any]]], None],
    *,
    state: Path | None = None,
    report: Callable[[str], None],
) -> None:
    """Watch lines as they come, until their end or a signal. To be called in the main thread.

    Args:
        source: A file descriptor to read to its end; or a file that grows, which is followed without end from the
            position of the state on, from its start if it is another file.
        write: Receives the `Watch.surprises` of some lines.
        state: The file of the state, written at the end however it comes, and every minute. Lines that were not
            written then are scored again, where the source is a file.
        report: Receives warnings.

    Raises:
        OSError: If the state cannot be written at the end. Earlier this is a warning, and the state before stays.
    """
    stop = _Stop()
    with ExitStack() as stack:
        if state is not None:
            state.parent.mkdir(parents=True, exist_ok=True)
            stack.enter_context(lock(Path(f"{state}.lock")))
            stack.callback(watch.save, state)
        for number in (signal.SIGINT, signal.SIGTERM):
            stack.callback(signal.signal, number, signal.signal(number, stop))
        saved = time.monotonic()
        if isinstance(source, int):
            watch.position = {}
            chunks = iter(lambda: stop.wait(lambda: os.read(source, _READ)), b"")
        else:
            chunks = _follow(source, watch.position, stop)
        for lines in cut(chunks):
            for number, line in enumerate(lines, watch.lines + 1):
                if line.size > LONGEST:
                    report(f"line {number} has {line.size:,} bytes, of which the first {LONGEST:,} are scored")
            if lines:
                watch.score([line.text for line in lines], write)
            if watch.position:
                watch.position["offset"] += sum(line.size + 1 for line in lines)
            if state is not None and time.monotonic() - saved > _SAVE_SECONDS:
                saved = time.monotonic()
                try:
                    watch.save(state)
                except OSError as error:
                    report(f"{one_line(error)}; the state before stays")


def _follow(path: Path, position: dict[str, int], stop: _Stop) -> Iterator[bytes]:
    """The content of a file from a position on, what is added to it, then that of a file which replaces it; nothing
    after each wait. position: is set for a new file."""
    last = b"\n"
    while True:
        with open(path, "rb") as file:
            here = os.fstat(file.fileno())
            same_file = (position.get("device"), position.get("inode")) == (here.st_dev, here.st_ino)
            if not same_file or here.st_size < position["offset"]:
                yield b"" if last.endswith(b"\n") else b"\n"
                position.update(device=here.st_dev, inode=here.st_ino, offset=0)
            file.seek(position["offset"])
            while file.tell() <= os.fstat(file.fileno()).st_size:
                while data := file.read(_READ):
                    stop.wait(bool)
                    last = data
                    yield data
                if path.exists() and not os.path.samestat(os.stat(path), here):  # another file has taken its place
                    break
                stop.wait(lambda: time.sleep(_POLL_SECONDS))
                yield b""
            else:  # it has been cut
                position["inode"] = 0


def written(rows: Iterable[Mapping[str, Any]]) -> str:
    """Return lines for people: the score, threshold, ALARM where it is exceeded, and the text."""
    lines = []
    for row in rows:
        score = row[_Text.score if _Text.score in row else _Samples.score]
        mark = "ALARM" if row["alarm"] else ""
        lines.append(f"{score:9.3f} {row['threshold']:9.3f} {mark:5} {row['text']}\n")
    return "".join(lines)
