"""torchtitan's own Trainer, on CPUs: the losses, gradients and weights of `lagwise train`, and checkpoints both ways.

torchtitan takes CUDA where it finds no accelerator, so the tests tell it of a CPU with the functions that it calls.
"""

from __future__ import annotations

import importlib.util
import json
import re
import sys
import types
from pathlib import Path
from typing import Any

import pytest
import torch
from processes import run_together, train_until
from tiny_models import tiny_head

from lagwise.kernels import LagKernel
from lagwise.models.loading import load_model
from lagwise.titan.export import export
from lagwise.training import load_recipe, train
from lagwise.training.model import build_model
from lagwise.training.setup import check_recipe, completed, open_data

pytestmark = [
    pytest.mark.cpu,
    pytest.mark.skipif(
        any(importlib.util.find_spec(name) is None for name in ("torchtitan", "triton")),
        reason="torchtitan is not installed; `make test-titan` runs these tests",
    ),
]
STEPS, LENGTH = 10, 48
FAMILIES = ("tnn-lm", "fd-tnn-lm", "mega-lm", "megalodon-lm", "best-lm")


def on_cpus() -> None:
    """Tell torchtitan that the CPU is the accelerator. To call before it is imported."""
    memory = types.SimpleNamespace(total_memory=1 << 34)
    functions: dict[str, Any] = dict.fromkeys(("set_device", "synchronize", "empty_cache"), lambda *_: None)
    functions |= {"device_count": lambda: 1, "current_device": lambda: 0, "get_device_name": lambda _: "CPU"}
    functions |= {"get_device_properties": lambda _: memory, "memory_stats": lambda _: {}}
    functions |= {"reset_peak_memory_stats": lambda: None}
    assert "torchtitan" not in sys.modules
    utils: Any = torch._utils
    utils._get_available_device_type = lambda: "cpu"
    utils._get_device_module = lambda _: types.SimpleNamespace(**functions)


def recipe_file(name: str, folder: Path, text: Path) -> Path:
    """Write a recipe of the family in a small size."""
    own = ("hidden_size", "num_hidden_layers", "block", "norm", "ngram_sizes", "match_sizes", "ngram_buckets")
    model = {key: getattr(tiny_head(name).config, key) for key in own}
    rest = {"data": {"source": str(text), "length": LENGTH}}
    rest["training"] = {"steps": STEPS, "batch_size": 4, "log_every": 1, "precision": "float32", "warmup_steps": 1}
    rest["training"] |= {"report_to": "none"}
    file = folder / f"{name}.yaml"
    file.write_text(json.dumps({"model": model, **rest}))  # which is YAML too
    return file


def run(file: str, out: str, options: list[str], *, short: bool = False, **changes: Any) -> list[tuple[float, float]]:
    """The loss and the norm of the gradients of each step of a training by torchtitan, in which kernels must be in
    float32, and other weights of layers in bfloat16 if ``short``."""
    from torchtitan.config import ConfigManager

    from lagwise.titan.config_registry import trainer_config

    sys.modules["configurations"] = module = types.ModuleType("configurations")
    module.mine = lambda: trainer_config(file)  # type: ignore[attr-defined]
    arguments = ["--module=configurations", "--config=mine", f"--dump_folder={out}", "--checkpoint.enable", *options]
    config = ConfigManager().parse_args(arguments)
    for name, value in changes.items():
        setattr(config, name, value)
    trainer, found = config.build(), []
    trainer.metrics_processor.log = lambda step, loss, largest, norm, **_: found.append((loss, norm))
    dtypes: set[Any] = set()

    def look(layer: Any, inputs: Any) -> None:
        kernels = {id(p) for part in layer.modules() if isinstance(part, LagKernel) for p in part.parameters()}
        dtypes.update((id(p) in kernels, p.dtype) for p in layer.parameters())

    for layer in () if "compile" in changes else trainer.model_parts[0].model.layers:
        layer.register_forward_pre_hook(look)
    trainer.train()
    trainer.close()
    assert dtypes in (set(), {(True, torch.float32), (False, torch.bfloat16 if short else torch.float32)})
    return found


def train_together(folder: str, names: list[str]) -> None:
    """Check every training in each of two processes."""
    on_cpus()
    from torchtitan.components.loss import ChunkedLossWrapper
    from torchtitan.config import CompileConfig
    from torchtitan.distributed.activation_checkpoint import FullAC, SelectiveAC

    for name in names:
        place = Path(folder, name)
        file = f"{folder}/{name}.yaml"
        start = [f"--hf_assets_path={place / 'start'}", "--checkpoint.initial_load_in_hf"]
        expected = [json.loads(line) for line in (place / "run" / "metrics.jsonl").read_text().splitlines()]
        expected = [(line["loss"], line["grad_norm"]) for line in expected if "grad_norm" in line]
        found = run(file, f"{place}/whole", start, activation_checkpoint=FullAC.Config())
        torch.testing.assert_close(found, expected, rtol=1e-5, atol=0)
        if name == "tnn-lm":
            run(file, f"{place}/parts", [*start, "--checkpoint.interval=5", "--checkpoint.no-last-save-model-only"])
            found = run(file, f"{place}/parts", ["--checkpoint.load_step=5"])
            torch.testing.assert_close(found, expected[5:], rtol=1e-5, atol=0)
            other: dict[str, Any] = {"compile": CompileConfig(enable=True, backend="eager")}
            other["activation_checkpoint"] = SelectiveAC.Config()
            found = run(file, f"{place}/other", [*start, "--parallelism.spmd_backend=partial_dtensor"], **other)
            torch.testing.assert_close(found, expected, rtol=1e-5, atol=0)
        found = run(file, f"{place}/short", [*start, "--training.mixed_precision_param=bfloat16"], short=True)
        torch.testing.assert_close(found, expected, rtol=3e-2, atol=0)
    found = run(file, f"{folder}/chunks", start, loss=ChunkedLossWrapper.Config(num_chunks=4))
    torch.testing.assert_close(found, run(file, f"{folder}/again", start), rtol=1e-5, atol=0)


NAMES = ("tnn_2m", "tnn_48m", "fd_tnn_2m", "fd_tnn_48m", "mega_2m", "mega_39m", "megalodon_2m", "megalodon_200m")
NAMES += ("megalodon_1_3b", "megalodon_7b", "best_lm_14m")


def parsed(name: str, *options: str) -> Any:
    from torchtitan.config import ConfigManager

    return ConfigManager().parse_args(["--module=lagwise.titan", f"--config={name}", *options])


def test_configurations_have_models_of_their_names() -> None:
    """Loaded and built as torchtitan does, without memory."""
    from lagwise.titan.config_registry import CONFIGS

    assert {*NAMES} == {*CONFIGS}
    for name in CONFIGS:
        config = parsed(name, "--training.steps=7")
        assert config.training.steps == 7
        spec = config.model_spec.model
        spec.update_from_config(config=config)
        with torch.device("meta"):
            model = spec.build()
        size = float(re.findall(r"_([\d_]+)[mb]$", name)[0].replace("_", ".")) * (1e9 if name.endswith("b") else 1e6)
        assert spec.get_nparams_and_flops(model, 512)[0] == pytest.approx(size, rel=0.2), name


@pytest.mark.parametrize(
    ("option", "reason"),
    [
        ("--parallelism.tensor_parallel_degree=2", "no tensor parallelism, got a degree of 2"),
        ("--parallelism.pipeline_parallel_degree=2", "no pipeline parallelism"),
        ("--parallelism.context_parallel_degree=2", "no context parallelism.*`sequence_parallel`"),
        ("--parallelism.expert_parallel_degree=2", "no expert parallelism"),
        ("--parallelism.spmd_backend=full_dtensor", "no spmd_backend 'full_dtensor'"),
    ],
)
def test_other_parallelism_is_refused_by_name(option: str, reason: str) -> None:
    config = parsed("tnn_2m", option)
    with pytest.raises(ValueError, match=reason):
        config.model_spec.model.update_from_config(config=config)


def test_what_torchtitan_does_not_have_is_refused() -> None:
    from lagwise.titan.config_registry import trainer_config

    for name, override, reason in (
        ("tnn-mlm", "training.steps=5", "language models, got the task 'masked"),
        ("tnn-lm", "training.optimizer=muon", "no `optimizer`, got 'muon'"),
        ("tnn-lm", "data.lengths=[4, 512]", "no `lengths`"),
    ):
        with pytest.raises(ValueError, match=reason):
            trainer_config(name, [override])


def test_the_model_of_a_folder_takes_packed_documents(tmp_path: Path) -> None:
    """By positions that start again, as torchtitan's loaders of text give them."""
    saved = tiny_head("mega-lm", dtype=torch.float32)
    saved.save_pretrained(tmp_path)
    config = parsed("folder", f"--hf_assets_path={tmp_path}")
    config.model_spec.model.update_from_config(config=config)
    model = config.model_spec.model.build()
    model.load_state_dict(saved.state_dict())
    ids, ends = torch.randint(50, (1, 30)), [13, 17]
    positions = torch.cat([torch.arange(end) for end in ends])[None]
    apart = torch.cat([model(part) for part in ids.split(ends, 1)], 1)
    torch.testing.assert_close(model(ids, positions=positions), apart)
    assert (model(ids) - apart).abs().max() > 1e-4


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_trainings_are_those_of_lagwise(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LAGWISE_CACHE", str(tmp_path / "cache"))
    text = tmp_path / "text.txt"
    text.write_text("".join(f"{i * i % 97} and {i * 7 % 31}, then {i % 5}. " for i in range(4000)))
    for name in FAMILIES:
        recipe = load_recipe(str(recipe_file(name, tmp_path, text)))
        full, data = completed(recipe, open_data(check_recipe(recipe), progress=False))
        start = tmp_path / name / "start"
        build_model(full, data).save_pretrained(start)
        data.tokenizer.save_pretrained(start)
        if name == "best-lm":  # of which a single process on a CPU updates tables of n-grams by rows, without momentum
            assert run_together(train_until, recipe, tmp_path / name / "run") == [0, 0]
        else:
            train(recipe, tmp_path / name / "run", progress=False)
    assert run_together(train_together, str(tmp_path), [*FAMILIES]) == [0, 0]
    for name in FAMILIES:
        trained, _ = load_model(tmp_path / name / "run")
        folder = export(tmp_path / name / "whole" / "checkpoint" / f"step-{STEPS}", tmp_path / name / "exported")
        found, tokenizer = load_model(folder)
        assert tokenizer is not None
        assert len(tokenizer) == 258
        torch.testing.assert_close(found.state_dict(), trained.state_dict(), rtol=1e-4, atol=1e-5)
        with pytest.raises(FileExistsError, match="is there already"):
            export(tmp_path / name / "whole" / "checkpoint" / f"step-{STEPS}", folder)
        with pytest.raises(FileNotFoundError, match="name a checkpoint"):
            export(tmp_path / name / "start", tmp_path / "nothing")
