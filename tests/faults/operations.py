"""Commands in which calls fail: each runs in a process that is forked from a server, where faults.c is preloaded."""

from __future__ import annotations

import ctypes
import gc
import os
import signal
import sys
from dataclasses import dataclass
from pathlib import Path

import torch

TINY = (
    "model.hidden_size=8",
    "model.num_hidden_layers=1",
    "model.block={name: prenorm, token_mixer: {name: gtu, expansion: 1, kernel: {name: rpe, hidden: 4, layers: 1, "
    "decay: 0.9}}}",
)
SHORT = ("data.length=32", "training.batch_size=4", "training.warmup_steps=2", "training.precision=float32", *TINY)
SHORT += ("training.evaluate_tokens=512", "training.log_every=1", "training.evaluate_every=2")
SHORT += ("training.steps=4", "training.save_every=2")
TRAIN = ("train", "--recipe", "tnn-lm", "--data", "words.txt", *SHORT)
ROWS = ("train", "--recipe", "classify", "--data", "reviews.csv", "model=linear", "--out", "rows")
FORECAST = ("forecast", "--data", "my.csv", "--model", "ridge", "--look-back", "8", "--out", "next.csv")
MEGA = Path(__file__).parents[2] / "papers" / "tests" / "imports" / "mega" / "causal"


@dataclass(frozen=True)
class Operation:
    """A command, those that ran before it, and the files that were lost since."""

    command: tuple[str, ...]
    before: tuple[tuple[str, ...], ...] = ()
    lost: tuple[str, ...] = ()


RUN = (*TRAIN, "--out", "run")


def watch(text: str) -> tuple[str, ...]:
    options = ("--state", "streams/state", "--alarms", "0.1", "--calibrate", text, "--learn", "1e-3")
    return ("watch", "states", text, *options)


FIRST_WATCHED = str(Path(__file__).with_name("faults.c"))
OPERATIONS = {
    "train": Operation((*RUN, "--resume", "auto"), lost=("cache/tokens",)),
    "resume": Operation(
        ("train", "--resume", "run"), (RUN,), ("run/model.safetensors", "run/config.json", "run/checkpoint-4")
    ),
    "rows": Operation((*ROWS, "--resume", "auto")),
    "convert": Operation(("convert", "run", "--tolerance", "0.1"), (RUN, ("convert", "run", "--tolerance", "0.5"))),
    "export": Operation(("export", "run", "--format", "pt2"), (RUN,)),
    "import": Operation(("import", str(MEGA), "--out", "mega")),
    "forecast": Operation((*FORECAST, "--horizon", "4"), ((*FORECAST, "--horizon", "2"),)),
    "predict": Operation(("predict", "rows", "--data", "reviews.csv", "--out", "new.csv"), (ROWS,)),
    "evaluate": Operation(("evaluate", "run", "--tokens", "200"), (RUN,)),
    "serve": Operation(("serve", "run"), (RUN,)),
    "watch": Operation(watch(__file__), (RUN, ("convert", "run", "--out", "states"), watch(FIRST_WATCHED))),
}


def work(folder: Path, command: tuple[str, ...], number: int, error: int, large: int, name: str = "") -> None:
    """Run a command in a folder. Its output goes to FOLDERNAME.said, and the calls that count to FOLDERNAME.calls.

    number, error and large: as in faults.c; error 0 is death.
    """
    torch.set_num_threads(1)
    gc.freeze()  # what the server has imported: a training collects garbage, which would take most of its time
    os.chdir(folder)
    os.environ |= {"LAGWISE_CACHE": str(folder / "cache"), "TMPDIR": str(folder / "tmp"), "COLUMNS": "500"}
    with open(f"{folder}{name}.said", "wb") as said:
        for stream in (1, 2):
            os.dup2(said.fileno(), stream)
    calls = os.open(f"{folder}{name}.calls", os.O_CREAT | os.O_WRONLY | os.O_TRUNC)
    sys.argv = ["lagwise", *command]

    import uvicorn

    from lagwise.cli.failures import run
    from lagwise.cli.main import app
    from lagwise.runs import convert, watch

    vars(convert)["_TOKENS_PER_TURN"] = 1  # of what is timed
    uvicorn.run = lambda *args, **options: None
    if command[0] == "watch":
        watch.time.sleep = lambda seconds: signal.raise_signal(signal.SIGINT)  # at the end of what is followed
    faults = ctypes.CDLL(None)
    faults.arm_faults(os.fsencode(folder), ctypes.c_long(number), error or -1, ctypes.c_size_t(large), calls)
    try:
        run(app)
    except SystemExit as end:
        if end.code != 128 + signal.SIGINT:
            raise
    finally:
        faults.disarm_faults()
