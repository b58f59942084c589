"""Shared fixtures. Data are generated or taken from Python's standard library; nothing is downloaded."""

from __future__ import annotations

import contextlib
import copy
import gc
import importlib
import os
import random
import shutil
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:  # what distributes tests to processes, which reads this file too, needs none of them
    import torch

    from lagwise.data import TokenData
    from lagwise.training.recipe import Recipe

os.environ.setdefault("HF_HUB_OFFLINE", "1")

WORDS = "the lag of a token is how far it lies behind and every kernel weighs what it finds there".split()  # noqa: SIM905

TINY_MODEL = {
    "hidden_size": 16,
    "num_hidden_layers": 2,
    "block": {
        "name": "prenorm",
        "token_mixer": {"name": "gtu", "expansion": 1, "kernel": {"name": "rpe", "hidden": 8, "layers": 1}},
    },
}


# Tests in these folders make tensors on --device. The others, such as trainings, use a GPU without being told.
_LAYERS = ("blocks", "kernels", "mixers", "models", "ops")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--device", default="cpu", help="cpu, cuda, or 'pretended': see tests/second_device.py")


def pytest_configure(config: pytest.Config) -> None:
    if config.getoption("--device") == "cpu":  # the whole suite is the CPU's, so that its exact comparisons hold
        os.environ["CUDA_VISIBLE_DEVICES"] = ""
    os.environ["LAGWISE_TEST_SLOW"] = str(int(config.getoption("markexpr") != "not slow"))


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Iterator[None]:
    """Searches for garbage among what is imported would take a third of the time until all tests are collected."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()


@pytest.hookimpl(tryfirst=True)  # before pytest leaves out slow tests
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    seen: Counter[tuple[Any, str]] = Counter()
    for item in items:
        marker = item.get_closest_marker("sampled")
        if marker is not None:
            function = item.parent, getattr(item, "originalname", item.name)
            if seen[function] % marker.args[0]:
                item.add_marker(pytest.mark.slow)
            seen[function] += 1
    name = config.getoption("--device")
    excluded = {"cpu": (), "pretended": ("cpu", "real_device")}.get(name, ("cpu",))
    for item in items:
        for marker in excluded:
            if item.get_closest_marker(marker):
                item.add_marker(pytest.mark.skip(reason=f"marked {marker!r}, and the device is {name}"))


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Comparisons of a device with the CPU need another than the CPU."""
    return True if collection_path.name.startswith("test_devices") and config.getoption("--device") == "cpu" else None


@pytest.fixture(autouse=True)
def device(request: pytest.FixtureRequest) -> Iterator[torch.device]:
    """The default device of tensors in a test."""
    import torch

    name = request.config.getoption("--device") if request.path.parent.name in _LAYERS else "cpu"
    with contextlib.ExitStack() as stack:
        if name == "pretended":
            from second_device import SecondDevice

            stack.enter_context(SecondDevice())
        if name != "cpu":
            stack.enter_context(_default_device(name))
        yield torch.device(name)


@contextlib.contextmanager
def _default_device(name: str) -> Iterator[None]:
    """Create tensors on a device, except within compiled code: Dynamo cannot trace `Tensor.unflatten` under a default
    device (PyTorch 2.13)."""
    import torch

    compile = torch.compile

    class Compiled:
        def __init__(self, *args: Any, **options: Any):
            self.compiled = compile(*args, **options)

        def __call__(self, *args: Any, **options: Any) -> Any:
            torch.set_default_device(None)
            try:
                return self.compiled(*args, **options)
            finally:
                torch.set_default_device(name)

        def __getattr__(self, attribute: str) -> Any:
            return getattr(self.compiled, attribute)

    torch.set_default_device(name)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(torch, "compile", Compiled)
        yield
    torch.set_default_device(None)


@pytest.fixture(autouse=True)
def _seed(device: torch.device) -> None:
    import torch

    torch.manual_seed(0)


@pytest.fixture
def uninitialised_is_nan() -> Iterator[None]:
    """Fill the result of every torch.empty with NaN, so that reads of uninitialized memory show."""
    import torch

    torch.use_deterministic_algorithms(True)
    yield
    torch.use_deterministic_algorithms(False)


@pytest.fixture(scope="module", autouse=True)
def _only_new_objects_are_garbage() -> None:
    """Every training collects garbage. Without this it looks each time at the half million objects of imported modules
    and collected tests, which takes longer than the training."""
    gc.collect()
    gc.freeze()


@pytest.fixture(scope="session", autouse=True)
def _cache(tmp_path_factory: pytest.TempPathFactory) -> None:
    os.environ["LAGWISE_CACHE"] = str(tmp_path_factory.mktemp("cache"))


@pytest.fixture(scope="session")
def text_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A learnable text of 40 kB."""
    random.seed(0)
    lines = (" ".join(random.choices(WORDS, k=10)) for _ in range(900))
    path = tmp_path_factory.mktemp("text") / "words.txt"
    path.write_text("\n".join(lines) + "\n")
    return path


@pytest.fixture(scope="session")
def text_data(text_file: Path) -> TokenData:
    from lagwise.data import prepare

    return prepare(str(text_file), "bytes", progress=False)


@pytest.fixture(scope="session")
def _tiny_recipe(text_file: Path) -> Recipe:
    from lagwise.training.recipe import load_recipe

    recipe = load_recipe(
        "tnn-lm",
        [
            f"data.source={text_file}",
            *("data.length=32", "training.steps=6", "training.batch_size=4", "training.warmup_steps=2"),
            *("training.save_every=3", "training.evaluate_every=3", "training.log_every=1"),
            *("training.evaluate_tokens=512", "training.precision=float32"),
        ],
    )
    recipe.model = TINY_MODEL
    return recipe


@pytest.fixture
def tiny_recipe(_tiny_recipe: Recipe) -> Recipe:
    """A recipe that trains in about a second."""
    return copy.deepcopy(_tiny_recipe)


@pytest.fixture(scope="session")
def _tiny_run(_tiny_recipe: Recipe, tmp_path_factory: pytest.TempPathFactory) -> Path:
    from lagwise.training import train

    return train(_tiny_recipe, tmp_path_factory.mktemp("tiny") / "run", progress=False)


@pytest.fixture
def tiny_run(_tiny_run: Path, tmp_path: Path) -> Path:
    """A copy of what `train(tiny_recipe)` writes, which trains once for all tests."""
    return shutil.copytree(_tiny_run, tmp_path / "whole")


@pytest.fixture
def recall_recipe() -> Recipe:
    """Associative recall that is learned within seconds."""
    from lagwise.training.recipe import load_recipe

    recipe = load_recipe(
        "associative-recall",
        [
            *("data.length=64", "data.vocab_size=6", "training.steps=300", "training.batch_size=8"),
            *("training.learning_rate=0.004", "training.evaluate_every=50", "training.save_every=200"),
            *("training.evaluate_tokens=8192", "training.precision=float32"),
        ],
    )
    recipe.model = {
        "hidden_size": 32,
        "num_hidden_layers": 2,
        "initializer_range": 0.1,
        "block": {"name": "prenorm", "token_mixer": {"name": "attention", "heads": 4}},
    }
    return recipe


@pytest.fixture
def benchmark_script(monkeypatch: pytest.MonkeyPatch) -> Callable[[str], ModuleType]:
    """A function that imports a script of a folder benchmarks anew, by its name."""

    def load(name: str) -> ModuleType:
        module = importlib.import_module(name)
        monkeypatch.delitem(sys.modules, name)
        return module

    return load
