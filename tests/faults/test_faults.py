"""Commands of which every single call on a file, or allocation, fails, or in which the process dies there.

After each, what was there before is there still, or the command's whole result in its place; and the same command,
called once more, ends with what it would have made without the fault.
"""

from __future__ import annotations

import errno
import json
import multiprocessing
import random
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from multiprocessing import forkserver
from pathlib import Path
from typing import Any

import pytest
import safetensors.numpy
from operations import OPERATIONS, Operation, work

DIES = 0
HANGS = 1  # a status that no command ends with
LONGEST = 120  # seconds of a command
ERRORS = (errno.ENOSPC, errno.EIO, errno.EACCES)
STATE = "streams/state"  # of what is watched
READING = 1  # instead of bytes: calls that open files to read
LARGE = 1 << 16  # bytes of an allocation that may fail
MOST_ALLOCATIONS = 20  # that fail in turn, of what may be hundreds
PRELOADED = ("operations", "lagwise.cli.main", "lagwise.training.run", "lagwise.runs", "lagwise.forecasting")
PRELOADED += ("lagwise_papers.imports", "matplotlib.pyplot", "uvicorn", "fastapi", "lagwise.serving.app")
PRELOADED += ("lagwise.runs.convert", "lagwise.runs.evaluate", "lagwise.runs.watch", "lagwise.training.linear_fits")
PRELOADED += ("lagwise_papers.commands", "sklearn.linear_model", "scipy.stats", "tensorboardX", "torch._dynamo")
PRELOADED += ("torch.nn.modules.linear_cross_entropy",)
HIDDEN = re.compile(r"(^|/)(\.saving|\.lock|tensorboard)|\.lock$|^tmp/|^cache/(?!tokens|labelled|rows)")

pytestmark = pytest.mark.skipif(
    sys.platform != "linux" or shutil.which("gcc") is None, reason="needs Linux and a compiler"
)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """Forks processes that have imported everything, with faults.c preloaded."""
    library = tmp_path_factory.mktemp("faults") / "faults.so"
    source = Path(__file__).with_name("faults.c")
    subprocess.run(["gcc", "-O1", "-shared", "-fPIC", "-o", library, source, "-ldl"], check=True)
    forkserver._forkserver._stop()  # that of other tests, if any, does without
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(list(PRELOADED))
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("LD_PRELOAD", str(library))
        first = context.Process(target=len, args=("",))
        first.start()
        first.join()
    yield context
    forkserver._forkserver._stop()


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with data."""
    folder = tmp_path_factory.mktemp("files") / "start"
    (folder / "tmp").mkdir(parents=True)
    chance = random.Random(0)
    words = "\n".join(" ".join(chance.choices("abcdef", k=10)) for _ in range(600))
    (folder / "words.txt").write_text(words)
    rows = "".join(f"{chance.choice(['good', 'fine'])} film {i},1\nbad film {i},0\n" for i in range(40))
    (folder / "reviews.csv").write_text("text,label\n" + rows)
    hours = "".join(f"2024-01-{1 + i // 24:02d} {i % 24:02d}:00,{i % 24 + chance.random():.3f}\n" for i in range(240))
    (folder / "my.csv").write_text("date,load\n" + hours)
    return folder


def run(server: Any, folder: Path, command: tuple[str, ...], number: int = 0, error: int = 0, large: int = 0) -> int:
    """Run a command in a process, and return its exit status."""
    process = server.Process(target=work, args=(folder, command, number, error, large))
    process.start()
    process.join(timeout=LONGEST)
    if process.is_alive():
        process.kill()
        process.join()
        return HANGS
    return process.exitcode


def content(folder: Path) -> dict[str, bytes]:
    """The files of a folder by name, but for locks, unfinished ones and what the process alone uses."""
    paths = (path for path in sorted(folder.rglob("*")) if path.is_file())
    names = {path.relative_to(folder).as_posix(): path for path in paths}
    return {name: path.read_bytes() for name, path in names.items() if not HIDDEN.search(name)}


def watched(data: bytes) -> dict[str, Any]:
    """What a state of `lagwise watch` says of the lines that were read."""
    header = json.loads(data[8 : 8 + int.from_bytes(data[:8], "little")])
    assert len(safetensors.numpy.load(data)) == len(header) - 1
    return json.loads(header["__metadata__"]["watch"])


def is_whole(name: str, data: bytes) -> bool:
    """Whether a file that is not the same twice, since it says how long something took, can be read to its end."""
    if name == STATE:
        return watched(data)["lines"] >= 0
    if name.endswith(".json"):
        return isinstance(json.loads(data), dict)
    if name.endswith(".jsonl"):  # the last line of a log may be cut off, and is ignored then
        return all(json.loads(line) for line in data.splitlines()[:-1])
    return bool(data)


class Faults:
    """An operation, what is there before, and what it makes, found by running it twice."""

    def __init__(self, server: Any, name: str, files: Path, folder: Path):
        self.server, self.name, self.folder = server, name, folder
        self.operation: Operation = OPERATIONS[name]
        self.start = folder / "start"
        shutil.copytree(files, self.start)
        if self.operation.command[0] == "train" and not self.operation.before:  # compile the C code into the cache
            run(server, self.start, OPERATIONS["train"].command)
            shutil.rmtree(self.start / "run")
            shutil.rmtree(self.start / "cache" / "tokens")
        for command in self.operation.before:
            assert run(server, self.start, command) == 0, said(self.start)
        for lost in self.operation.lost:
            path = self.start / lost
            shutil.rmtree(path, ignore_errors=True) if path.is_dir() else path.unlink(missing_ok=True)
        self.before = content(self.start)
        self.whole, again = (content(self.at("whole")) for _ in range(2))
        self.volatile = {name for name in self.whole if self.whole[name] != again.get(name)}
        # The states of an optimiser that was loaded are pickled in another order; those of the weights show them. And
        # seconds may be the same twice.
        self.volatile |= {name for name in self.whole if name.endswith((".pt", ".pth", "first.json", "metrics.jsonl"))}
        self.seen: set[frozenset[tuple[str, int]]] = set()  # what faults left, and the same command then mended

    def at(self, name: str, number: int = 0, error: int = 0, large: int = 0) -> Path:
        """Run the operation in a new folder, always of the same path, with a fault or without."""
        work = self.folder / "work"
        shutil.rmtree(work, ignore_errors=True)
        shutil.copytree(self.start, work)
        status = run(self.server, work, self.operation.command, number, error, large)
        self.failed = re.findall(".* FAILS", Path(f"{work}.calls").read_text())[:1]
        if not number:
            assert status == 0, said(work)
        elif status == 2:
            (line,) = re.findall(r"^error: .*", said(work), re.MULTILINE) or [""]
            assert line, said(work)
            assert not line.startswith("error: unexpected") or large > READING, line
        else:
            assert status == 0 or (error == DIES and status == -9) or (large > READING and status < 0), (
                status,
                said(work),
            )
        return work

    def left(self, work: Path) -> frozenset[tuple[str, int]]:
        """Hashes of all that is in a folder, unfinished files too, but for times and random names."""
        parts = []
        for path in work.rglob("*"):
            name, data = path.relative_to(work).as_posix(), path.read_bytes() if path.is_file() else b""
            changes = name in self.volatile or "tensorboard" in name
            name = re.sub(r"\.saving-[^/]*|tfevents.*", "", name)
            parts.append((name, data.count(b"\n") if changes else hash(data)))
        return frozenset(parts)

    def calls(self, large: int = 0) -> int:
        """How many calls count."""
        self.at("count", 10**9, errno.EIO, large)
        return int(Path(f"{self.folder / 'work'}.calls").read_text().splitlines()[-1])

    def check(self, number: int, error: int, large: int = 0) -> str:
        """Say what is wrong after a fault, or after the same command once more."""
        # Of lines that are scored once more, since memory did not suffice, something was learned already.
        volatile = self.volatile | ({STATE} if large == LARGE else set())
        try:
            work = self.at("fault", number, error, large)
            kept = content(work)
            for name in self.before.keys() - kept.keys():
                assert name not in self.whole or name.endswith(("config.json", "export.json")), f"{name} is lost"
            for name, data in kept.items():
                new = name not in self.whole.keys() | self.before.keys()
                if new or name in volatile:
                    assert is_whole(name, data), f"{name} is half"
                elif name.endswith("run.json") and data != self.before.get(name):  # what is known at first, then all
                    assert json.loads(data).items() <= json.loads(self.whole[name]).items(), f"{name} is changed"
                else:
                    assert data in (self.before.get(name), self.whole.get(name)), f"{name} is changed"
            if (left := self.left(work)) in self.seen:
                return ""
            status = run(self.server, work, self.operation.command)
            found = content(work)
            assert found.keys() == self.whole.keys(), f"{found.keys() ^ self.whole.keys()}; once more: {said(work)}"
            for name in found.keys() - volatile:
                assert found[name] == self.whole[name], f"{name} is another in the end"
            if STATE in found:
                assert watched(found[STATE]) == watched(self.whole[STATE]), "other lines were read in the end"
            if status:  # what was made is whole already, and the same command would overwrite it
                assert "choose another" in said(work), said(work)
            else:
                assert not (unfinished := [str(path) for path in work.rglob(".saving*")]), unfinished
            self.seen.add(left)
        except (AssertionError, ValueError) as problem:
            return f"{self.name} {number} {error} {large} {self.failed}: {str(problem)[-600:]}"
        return ""


def said(work: Path) -> str:
    return Path(f"{work}.said").read_text(errors="replace")[-3000:]


@pytest.fixture
def faults(request: pytest.FixtureRequest, server: Any, files: Path, tmp_path: Path) -> Faults:
    return Faults(server, request.param, files, tmp_path)


@pytest.mark.parametrize("faults", ["import", pytest.param("train", marks=pytest.mark.slow)], indirect=True)
def test_a_fault_at_some_calls(faults: Faults) -> None:
    numbers = random.Random(faults.name).sample(range(1, faults.calls() + 1), 2)
    problems = [faults.check(number, error) for number, error in zip(numbers, (DIES, errno.ENOSPC), strict=True)]
    assert not any(problems), "\n".join(problems)


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("large", [0, READING, LARGE], ids=["changes", "reads", "memory"])
@pytest.mark.parametrize("faults", OPERATIONS, indirect=True)
def test_a_fault_at_every_call(faults: Faults, large: int) -> None:
    """Each call that changes files is a death or an error, by a seed: with both it would take twice as long. Of
    allocations, of which there may be hundreds, only some fail."""
    total, problems, chance = faults.calls(large), [], random.Random(faults.name)
    step = max(1, total // MOST_ALLOCATIONS) if large == LARGE else 1
    for number in range(1, total + 1, step):
        change = chance.choice((DIES, chance.choice(ERRORS)))
        problems.append(faults.check(number, {READING: errno.EIO, LARGE: errno.ENOMEM}.get(large, change), large))
    assert not any(problems), "\n".join(filter(None, problems))


@pytest.mark.slow
@pytest.mark.parametrize("faults", ["train", "resume"], indirect=True)
def test_of_several_processes_in_one_folder_one_trains(faults: Faults) -> None:
    """The others say that it does, or that it has finished."""
    work_folder = faults.folder / "work"
    shutil.rmtree(work_folder)
    shutil.copytree(faults.start, work_folder)
    arguments = (work_folder, faults.operation.command, 0, 0, 0)
    rivals = [faults.server.Process(target=work, args=(*arguments, f"-{number}")) for number in range(3)]
    for process in rivals:
        process.start()
    for process in rivals:
        process.join()
    failed = [Path(f"{work_folder}-{i}.said").read_text() for i, rival in enumerate(rivals) if rival.exitcode]
    assert len(failed) < len(rivals), failed
    assert all("another process is training in" in text or "holds a finished run" in text for text in failed), failed
    found = content(work_folder)
    assert found.keys() == faults.whole.keys()
    assert {name for name in found if found[name] != faults.whole[name]} <= faults.volatile
