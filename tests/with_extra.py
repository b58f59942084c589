"""Run lagwise's commands with one extra: each works, or says in one line what to install.

    python tests/with_extra.py FOLDER train   in an environment that has this extra
    python tests/with_extra.py FOLDER ""      without any extra

FOLDER has the inputs, which are made if it does not exist; that needs the extra `train`. It fails if a command does
neither, or if it refuses although the extra is said to be enough for it.
"""

from __future__ import annotations

import contextlib
import importlib
import importlib.metadata
import io
import random
import re
import shutil
import sys
import traceback
from collections.abc import Callable, Iterable
from pathlib import Path

PYPROJECT = Path(__file__).parents[1] / "pyproject.toml"
TINY = (
    "model.block={name: prenorm, token_mixer: {name: gtu, kernel: {name: rpe, layers: 1, hidden: 4}}}",
    *("model.hidden_size=8", "model.num_hidden_layers=1", "training.steps=2", "training.evaluate_tokens=200"),
)
#: commands by name, and the extras of which one is enough
COMMANDS: dict[str, tuple[str, ...]] = {
    "recipes": ("recipes",),
    "train": ("train", "--data", "words.txt", "--out", "new/lm", "data.length=16", *TINY),
    "train classify": ("train", "--recipe", "classify", "--data", "rows.csv", "--out", "new/classes", *TINY),
    "train signal": ("train", "--recipe", "signal", "--data", "series.npz", "--out", "new/signal", "training.steps=1"),
    "train images": ("train", "--recipe", "tnn-digits", "--out", "new/digits", "training.steps=1"),
    "train forecast": (
        *("train", "--recipe", "forecast-tnn", "--data", "days.csv", "--out", "new/forecast"),
        *("task.horizon=2", "data.length=16", "training.steps=1"),
    ),
    "evaluate": ("evaluate", "lm", "--lengths", "16", "--tokens", "100"),
    "evaluate classes": ("evaluate", "classes"),
    "predict": ("predict", "classes", "--text", "good"),
    "generate": ("generate", "lm", "--tokens", "3"),
    "convert": ("convert", "lm", "--out", "new/converted", "--tolerance", "0.5"),
    "plot": ("plot", "lm"),
    "forecast": ("forecast", "--data", "days.csv", "--horizon", "2", "--model", "ridge", "--out", "new/forecast.csv"),
    "serve": ("serve", "lm"),
    "export": ("export", "lm", "--out", "new/exported"),
}
ENOUGH = {
    "": ("recipes", "evaluate", "generate", "convert"),
    "train": ("train", "train classify", "train signal", "train forecast", "evaluate classes", "predict", "sounds"),
    "plot": ("plot",),
    "forecast": ("plot", "forecast", "LagForecaster"),
    "export": ("export",),
    "chip": ("export",),
    "serve": ("serve",),
}
#: tests of what an extra serves beside lagwise's own commands: programs, benchmarks and comparisons
TESTS = {"clients": ("tests/models/test_clients.py", "tests/models/test_replaced_layers.py")}


def make_inputs(folder: Path) -> None:
    """Data, and runs of a language model and of a classifier."""
    import numpy as np

    folder.mkdir(parents=True, exist_ok=True)
    with contextlib.chdir(folder):
        random.seed(0)
        words = [random.choice(("good", "bad", "fair", "dear")) for _ in range(2000)]
        Path("words.txt").write_text(" ".join(words))
        rows = "".join(f"{word} {other},{word}\n" for word, other in zip(words[:60], words[60:120], strict=True))
        Path("rows.csv").write_text("text,label\n" + rows)
        days = "".join(f"{2000 + i // 12}-{i % 12 + 1:02}-01,{np.sin(i / 2):.3f}\n" for i in range(120))
        Path("days.csv").write_text("month,value\n" + days)
        series = np.random.default_rng(0).normal(size=(40, 32)).astype(np.float32)
        np.savez("series.npz", input_values=series, label=np.arange(40) % 2)
        for name, out in (("train", "lm"), ("train classify", "classes")):
            arguments = list(COMMANDS[name])
            arguments[arguments.index("--out") + 1] = out
            outcome = run_command(arguments)
            assert outcome == "works", outcome


def run_command(arguments: Iterable[str]) -> str:
    """`works`, the line of an error, or everything printed if there is more than that."""
    from lagwise.cli import failures
    from lagwise.cli.main import app

    out, err = io.StringIO(), io.StringIO()
    before, sys.argv = sys.argv, ["lagwise", *arguments]
    status: object = 0
    try:
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            failures.run(app)
    except SystemExit as stop:
        status = stop.code
    except BaseException:
        return traceback.format_exc()
    finally:
        sys.argv = before
    if status in (0, None):
        return "works"
    lines = err.getvalue().strip().splitlines()
    return lines[-1] if lines and lines[-1].startswith("error: ") else f"{out.getvalue()}{err.getvalue()}"


def imported(statement: str) -> str:
    """The same of an import in a program."""
    try:
        exec(statement, {})
    except ImportError as error:
        return f"error: {error}"
    return "works"


def read_flac() -> str:
    """The same of a compressed sound."""
    from lagwise.data.series_files import read_sound

    path = Path("new/sound.flac")
    try:
        import soundfile

        soundfile.write(path, [0.0, 0.5, -0.5] * 100, 8000)
    except ImportError:
        path.write_bytes(b"fLaC")
    try:
        rate, samples = read_sound(path.read_bytes(), path)
    except ImportError as error:
        return f"error: {error}"
    return "works" if (rate, samples.shape) == (8000, (300, 1)) else f"{rate} Hz, {samples.shape}"


def tested(extra: str) -> int:
    """Run the tests of what an extra serves, and say which were skipped and why. 0 if none failed."""
    import pytest

    files = [str(PYPROJECT.parent / name) for name in TESTS[extra]]
    return int(pytest.main([*files, "-m", "slow or not slow", "-rs", "--timeout=900"]))


def outcomes(folder: Path) -> dict[str, str]:
    """What each command does in a folder of inputs."""
    import lagwise

    with contextlib.suppress(ImportError):  # the server starts, and ends at once
        import uvicorn

        uvicorn.run = lambda *args, **options: None
    checks: dict[str, Callable[[], str]] = {
        name: lambda arguments=arguments: run_command(arguments) for name, arguments in COMMANDS.items()
    }
    checks["sounds"] = read_flac
    checks["LagForecaster"] = lambda: imported("from lagwise import LagForecaster")
    print(f"lagwise {lagwise.__version__} in {Path(lagwise.__file__).parent}")
    shutil.rmtree(folder / "new", ignore_errors=True)
    (folder / "new").mkdir()
    with contextlib.chdir(folder):
        return {name: check() for name, check in checks.items()}


def unusable_torchvision() -> str | None:
    """Why the installed torchvision cannot be imported: it was compiled for another torch, which nothing of lagwise can
    help, since transformers imports torchvision wherever it is installed."""
    import torch

    try:
        importlib.import_module("torchvision")
    except ModuleNotFoundError as error:
        return None if error.name == "torchvision" else str(error)
    except Exception as error:  # RuntimeError, ImportError or OSError, as the versions differ
        version = importlib.metadata.version("torchvision")
        reason = str(error).strip().splitlines()[0]
        return f"torchvision {version} cannot be imported beside torch {torch.__version__}: {reason}"
    return None


def main(folder: Path, extra: str) -> int:
    if reason := unusable_torchvision():
        print(f"skipped: {reason}")
        if extra == "vision":
            return 0
        sys.modules["torchvision"] = None  # type: ignore[assignment]  # as if it were not installed
    if not folder.is_dir():
        try:
            make_inputs(folder)
        except BaseException:  # the next call makes them anew; runs name the files of their data
            shutil.rmtree(folder)
            raise
    failed = 0
    for name, outcome in outcomes(folder).items():
        refuses = re.fullmatch(r"error: [^\n]* install lagwise\[\w+\][^\n]*", outcome) is not None
        enough = name in ENOUGH[""] or name in ENOUGH.get(extra, ())
        fine = outcome == "works" or (refuses and not enough)
        failed += not fine
        print(f"{'' if fine else 'WRONG '}{name}: {outcome}")
    return failed + (tested(extra) if extra in TESTS else 0)


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]).resolve(), sys.argv[2]))
