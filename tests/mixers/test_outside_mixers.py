"""Mixers and kernels of other packages: registration, training, and contract checks that detect violations."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from importlib.metadata import EntryPoint
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
import torch.distributed as dist
from processes import run_together
from torch import Tensor, nn

from lagwise import outside, testing
from lagwise.kernels import KERNELS, LagKernel, register_kernel
from lagwise.mixers import MIXERS, AttentionMixer, Mixer, ToeplitzMixer, register_mixer
from lagwise.models import LagwiseConfig, LagwiseForCausalLM
from lagwise.outside import Registry
from lagwise.testing import check_mixer
from lagwise.training import Recipe, train


class LeakState(NamedTuple):
    memory: Tensor


class OwnRowsState(NamedTuple):
    """As states of 0.2: it selects and joins its rows itself. Its tensor has the batch as its second axis."""

    memory: Tensor

    def map_batch(self, change: Any) -> OwnRowsState:
        return OwnRowsState(change(self.memory.t()).t())

    @staticmethod
    def join(states: Any) -> OwnRowsState:
        return OwnRowsState(torch.cat([state.memory for state in states], 1))


class LeakyMixer(Mixer):
    """A leaky sum of earlier inputs: ``h_i = a h_{i-1} + W x_i``."""

    directions = (True,)

    def __init__(self, channels: int, *, causal: bool = True):
        super().__init__(channels, causal)
        self.rate = nn.Parameter(torch.zeros(channels))
        self.input = nn.Linear(channels, channels, bias=False)

    def init_state(self, batch_size: int) -> LeakState:
        return LeakState(self.rate.new_zeros(batch_size, self.channels))

    def mix(self, x: Tensor, state: Any, layout: Any) -> tuple[Tensor, Any]:
        state = LeakyMixer.init_state(self, len(x)) if state is None else state
        outputs, memory, added = [], state.memory, self.input(x)
        for each in added.unbind(1):
            memory = self.rate.sigmoid() * memory + each
            outputs.append(memory)
        return torch.stack(outputs, 1), LeakState(memory)


@pytest.fixture
def table(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    for name in ("leaky", "installed", "broken"):
        monkeypatch.delitem(MIXERS, name, raising=False)
    before = dict(MIXERS)
    yield
    MIXERS.clear()
    MIXERS.update(before)


def test_an_external_mixer_passes_the_contract_checks_and_trains(
    table: None, tiny_recipe: Recipe, tmp_path: Path
) -> None:
    check_mixer(lambda channels, causal: LeakyMixer(channels, causal=causal), channels=4, lengths=(1, 2, 63))
    register_mixer("leaky", LeakyMixer)
    tiny_recipe.model["block"] = {"name": "prenorm", "token_mixer": {"name": "leaky"}}
    assert (train(tiny_recipe, tmp_path / "run", progress=False) / "model.safetensors").is_file()
    with pytest.raises(ValueError, match="LeakyMixer has no two-sided form: build it with causal=True, causal"):
        LeakyMixer(4, causal=False)


class OwnRowsMixer(LeakyMixer):
    def init_state(self, batch_size: int) -> Any:
        return OwnRowsState(super().init_state(batch_size).memory.t())

    def mix(self, x: Tensor, state: Any, layout: Any) -> Any:
        y, after = super().mix(x, None if state is None else LeakState(state.memory.t()), layout)
        return y, OwnRowsState(after.memory.t())


def test_a_state_may_select_and_join_its_rows_itself() -> None:
    def factory(channels: int, causal: bool) -> Mixer:
        return OwnRowsMixer(channels, causal=causal)

    for check in (testing.check_joined_states, testing.check_padding_anywhere):
        check(factory, 4)


class ListMixer(LeakyMixer):
    """Its state is a list of all tokens."""

    def init_state(self, batch_size: int) -> Any:
        return []

    def mix(self, x: Tensor, state: Any, layout: Any) -> Any:
        together = torch.cat([*(state or []), x], 1)
        return super().mix(together, None, layout)[0][:, -x.shape[1] :], [together]


class GrowingMixer(LeakyMixer):
    """Its state has one entry for every token, which it does not declare."""

    def mix(self, x: Tensor, state: Any, layout: Any) -> Any:
        if state is None:
            return super().mix(x, None, layout)
        y, after = super().mix(x, LeakState(state.memory.reshape(len(x), -1, self.channels)[:, -1]), layout)
        return y, LeakState(torch.cat([state.memory.reshape(len(x), -1, self.channels), after.memory[:, None]], 1))


def model_of(mixer: type[Mixer], **attributes: Any) -> LagwiseForCausalLM:
    register_mixer("leaky", type(mixer.__name__, (mixer,), attributes))
    block = {"name": "prenorm", "token_mixer": {"name": "leaky"}}
    return LagwiseForCausalLM(LagwiseConfig(vocab_size=20, hidden_size=8, num_hidden_layers=1, block=block)).eval()


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("g++") is None, reason="there is no C++ compiler")
def test_an_external_mixer_compiles(table: None) -> None:
    model, ids = model_of(LeakyMixer), torch.randint(20, (1, 6))
    options: dict[str, Any] = {"max_new_tokens": 5, "do_sample": False, "pad_token_id": 0}
    expected = model.generate(ids, **options)
    assert model.compile_step()
    assert torch.equal(model.generate(ids, **options), expected)


@pytest.mark.parametrize(
    ("mixer", "attributes", "message"),
    [
        (ListMixer, {}, "ListMixer has no step of fixed shapes: a state must be a named tuple of tensors, got list"),
        (GrowingMixer, {}, "GrowingMixer has no step of fixed shapes: .* declare `grows = True`"),
        (LeakyMixer, {"grows": True}, "LeakyMixer has a streaming state that grows with the text"),
    ],
)
def test_an_external_mixer_without_a_fixed_step_is_refused_by_name(
    table: None, mixer: Any, attributes: dict[str, Any], message: str
) -> None:
    model = model_of(mixer, **attributes)
    with pytest.raises(ValueError, match=message):
        model.compile_step()


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        (lambda y, x: x.flip(1), "outputs before a change|a row with"),
        (lambda y, x: y.to(torch.bfloat16).to(x.dtype), "finite differences"),
        (lambda y, x: y + x.mean((0, 1)), "a row with|outputs before"),
        (lambda y, x: y.double(), "output of torch.float64"),
    ],
)
def test_contract_violations_are_detected(wrong: Any, message: str) -> None:
    def mix(self: Any, x: Tensor, state: Any, layout: Any) -> Any:
        y, state = LeakyMixer.mix(self, x, state, layout)
        return wrong(y, x), state

    kind = type("Wrong", (LeakyMixer,), {"mix": mix})
    with pytest.raises(AssertionError, match=message):
        check_mixer(lambda channels, causal: kind(channels, causal=causal), channels=4, lengths=(1, 5))


class ShiftMixer(Mixer):
    """The token before, as a causal mixer of another package with a form for split rows: one token of reach."""

    streams = False
    directions = (True,)
    takes_shards = True
    reach = 1

    def mix(self, x: Tensor, state: Any, layout: Any) -> tuple[Tensor, Any]:
        return layout.near(self._shifted, x, self.reach, 0), None

    def _shifted(self, x: Tensor, layout: Any) -> Tensor:
        return nn.functional.pad(x, (0, 0, 1, 0))[:, :-1] + x


def mixer_of_the_tutorial() -> type[Mixer]:
    """The class that docs/tutorials/mixer.md defines first."""
    page = (Path(__file__).parents[2] / "docs" / "tutorials" / "mixer.md").read_text()
    names: dict[str, Any] = {"__name__": "tutorial"}
    exec(page.split("```python\n")[1].split("```")[0], names)
    return names["GatedMixer"]


def check_in_processes() -> None:
    dist.init_process_group("gloo")
    for kind in (LeakyMixer, ShiftMixer, mixer_of_the_tutorial()):  # refused by its name, and equal twice
        check_mixer(lambda channels, causal, kind=kind: kind(channels, causal=causal), channels=4, lengths=(1, 9))
    short = type("ShortShiftMixer", (ShiftMixer,), {"reach": 0})  # wrong at the borders of shards
    with pytest.raises(AssertionError, match=" of plain rows, split between processes, is off by"):
        testing.check_shards(lambda channels, causal: short(channels, causal=causal), 4, True)
    dist.destroy_process_group()


@pytest.mark.slow
@pytest.mark.skipif(os.name != "posix", reason="needs fork")
def test_processes_check_split_rows_too() -> None:
    assert run_together(check_in_processes) == [0, 0]


def test_installed_packages_declare_mixers(monkeypatch: pytest.MonkeyPatch) -> None:
    points = [
        EntryPoint("installed", "lagwise.mixers.toeplitz:ToeplitzMixer", "lagwise.mixers"),
        EntryPoint("broken", "no_such_package:Mixer", "lagwise.mixers"),
        EntryPoint("linear", "torch.nn:Linear", "lagwise.mixers"),
        EntryPoint("own", "no_such_package:Mixer", "lagwise.mixers"),
    ]
    monkeypatch.setattr(outside, "entry_points", lambda group: points)
    parts = Registry("mixer", Mixer, "lagwise.mixers", {"own": AttentionMixer})
    assert parts["own"] is AttentionMixer
    with pytest.warns(UserWarning, match="cannot be loaded: lagwise has a mixer 'own' itself"):
        assert parts["installed"] is ToeplitzMixer
    with pytest.warns(UserWarning, match="mixer 'broken' of no_such_package:Mixer cannot be loaded: .*No module named"):
        assert "broken" not in parts
    with pytest.warns(UserWarning, match="mixer 'linear' of torch.nn:Linear cannot be loaded: .*must be a subclass"):
        assert list(parts) == ["own", "installed"]


def test_names_and_classes_of_registered_mixers_are_checked() -> None:
    with pytest.raises(ValueError, match="lagwise has a mixer 'toeplitz' itself"):
        register_mixer("toeplitz", LeakyMixer)
    with pytest.raises(TypeError, match="must be a subclass"):
        register_mixer("other", nn.Linear)  # type: ignore[arg-type]


@pytest.mark.slow
def test_a_package_may_be_imported_before_its_entry_point_is_loaded(tmp_path: Path) -> None:
    """Its module imports lagwise, which must not ask for the module's class before the module is complete."""
    (tmp_path / "theirs.py").write_text(
        "from lagwise.mixers import MIXERS, ToeplitzMixer\n\nclass Theirs(ToeplitzMixer): ...\n"
    )
    info = tmp_path / "theirs-1.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: theirs\nVersion: 1\n")
    (info / "entry_points.txt").write_text("[lagwise.mixers]\ntheirs = theirs:Theirs\n")
    code = "import theirs; assert theirs.MIXERS['theirs'] is theirs.Theirs"
    path = os.pathsep.join([str(tmp_path), *sys.path])
    subprocess.run([sys.executable, "-W", "error", "-c", code], check=True, env={**os.environ, "PYTHONPATH": path})


def test_an_external_kernel_streams_in_a_mixer(monkeypatch: pytest.MonkeyPatch) -> None:
    """`setitem` removes the kernel from the table after the test."""

    class Reciprocal(LagKernel):
        def __init__(self, channels: int, *, causal: bool = True, power: float = 1.0):
            super().__init__(channels, causal)
            self.gain = nn.Parameter(torch.ones(channels, 1))
            self.power = power

        def taps(self, length: int) -> torch.Tensor:
            return self.gain * (1 + self.lags(length, self.gain.device).abs()).double() ** -self.power

    monkeypatch.setitem(KERNELS, "reciprocal", Reciprocal)
    register_kernel("reciprocal", Reciprocal)
    mixer = ToeplitzMixer(3, kernel={"name": "reciprocal", "power": 2.0}).double()
    x = torch.randn(1, 40, 3, dtype=torch.float64)
    torch.testing.assert_close(mixer.prefill(x, mixer.init_state(1))[0], mixer(x), rtol=0, atol=1e-12)
    with pytest.raises(ValueError, match="lagwise has a kernel 'rpe' itself"):
        register_kernel("rpe", Reciprocal)
    with pytest.raises(TypeError, match=r"must be a subclass of lagwise\.kernels\.base\.LagKernel"):
        register_kernel("other", nn.Linear)  # type: ignore[arg-type]
