"""A saved folder loads with trust_remote_code=True in a process that has not imported lagwise."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
import transformers
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedModel
from transformers.dynamic_module_utils import get_class_from_dynamic_module

import lagwise
from lagwise import LagwiseConfig
from lagwise.data import load_tokenizer
from lagwise.models import LagwiseLinearConfig
from lagwise.models.loading import load_model
from lagwise.models.registry import HEADS
from lagwise.models.remote_code import CLASSES, LINEAR_CLASSES

PATCHES = {"name": "patches", "channels": 1, "size": 2}
FIELDS = {
    "LagwiseForCausalLM": {},
    "LagwiseModel": {},
    "LagwiseForImageClassification": {"causal": False, "inputs": PATCHES},
    "LagwiseForPrediction": {"causal": False, "inputs": {"name": "values", "features": 4}},
    "LagwiseForSignalRegression": {"inputs": {"name": "values", "stride": 2}, "outputs": {"window": 8}},
}

ANYWHERE = """
import sys
import transformers
from pathlib import Path

class Hidden:
    def find_spec(self, name, path=None, target=None):
        if name == "lagwise":
            raise ModuleNotFoundError("No module named 'lagwise'", name=name)

root = Path(sys.argv[1])
sys.meta_path.insert(0, Hidden())
try:
    transformers.AutoModelForCausalLM.from_pretrained(root / "LagwiseForCausalLM", trust_remote_code=True)
except ImportError as error:
    assert "Run `pip install lagwise`" in str(error), error
else:
    raise AssertionError("loaded without lagwise")
sys.meta_path.pop(0)
try:
    transformers.AutoModelForCausalLM.from_pretrained(root / "LagwiseForCausalLM", trust_remote_code=False)
except ValueError as error:
    assert "trust_remote_code=True" in str(error), error
else:
    raise AssertionError("code was run that nobody trusted")
tokenizer = transformers.AutoTokenizer.from_pretrained(root / "LagwiseForCausalLM", trust_remote_code=False)
assert "lagwise" not in sys.modules
for auto, name in eval(sys.argv[2]).items():
    model = getattr(transformers, auto).from_pretrained(root / name, trust_remote_code=True)
    import lagwise.models
    assert type(model) is getattr(lagwise.models, name), type(model)
    model.save_pretrained(root / f"{name}-again")
    again = getattr(transformers, auto).from_pretrained(root / f"{name}-again", trust_remote_code=True)
    assert type(again) is type(model)
    assert sorted(f.name for f in (root / name).iterdir() if "token" not in f.name) == sorted(
        f.name for f in (root / f"{name}-again").iterdir()
    )
generate = transformers.pipeline("text-generation", str(root / "LagwiseForCausalLM"), trust_remote_code=True)
print(generate("ab", max_new_tokens=3, do_sample=False)[0]["generated_text"])
"""


LINEAR = {
    "LagwiseLinearForSequenceClassification": (
        {"name": "convolutions", "dilations": [1], "thresholds": [2]},
        {"name": "values", "features": 2},
    ),
    "LagwiseLinearForImageClassification": (
        {"name": "patches", "side": 2, "filters": 3, "regions": 2},
        {"name": "patches", "channels": 1},
    ),
}


def save(name: str, folder: Path) -> PreTrainedModel:
    if name in LINEAR_CLASSES:
        features, inputs = LINEAR[name]
        linear = HEADS[name](LagwiseLinearConfig(features=features, inputs=inputs)).eval()
        linear.save_pretrained(folder)
        return linear
    fields = {"vocab_size": 258, "hidden_size": 8, "num_hidden_layers": 1, "causal": False, **FIELDS.get(name, {})}
    fields = {**fields, "causal": name == "LagwiseForCausalLM", "pad_token_id": 257}
    model = HEADS[name](LagwiseConfig(**fields)).eval()
    model.save_pretrained(folder)
    return model


def test_every_head_of_the_table_is_registered() -> None:
    assert set(HEADS) <= set(lagwise.models.__all__)
    for config, classes in ((LagwiseConfig, CLASSES), (LagwiseLinearConfig, LINEAR_CLASSES)):
        for name, each in classes.items():
            if each != "AutoConfig":
                assert getattr(transformers, each)._model_mapping[config] is HEADS[name]


@pytest.mark.parametrize("name", HEADS)
def test_the_file_in_a_folder_imports_our_classes(name: str, tmp_path: Path) -> None:
    save(name, tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    references = [reference for reference in config["auto_map"].values() if reference.endswith(f".{name}")]
    assert len(references) == 1
    assert get_class_from_dynamic_module(references[0], tmp_path) is HEADS[name]
    expected = LagwiseLinearConfig if name in LINEAR else LagwiseConfig
    assert get_class_from_dynamic_module(config["auto_map"]["AutoConfig"], tmp_path) is expected


IN_A_PROCESS = ("LagwiseForCausalLM", "LagwiseForSignalRegression")


@pytest.mark.slow  # the test above loads every class from its folder
def test_in_a_process_that_has_not_imported_lagwise(tmp_path: Path) -> None:
    for name in IN_A_PROCESS:
        save(name, tmp_path / name)
    load_tokenizer("bytes").save_pretrained(tmp_path / "LagwiseForCausalLM")
    classes = {CLASSES[name]: name for name in IN_A_PROCESS}
    arguments = [sys.executable, "-c", ANYWHERE, str(tmp_path), repr(classes)]
    result = subprocess.run(arguments, capture_output=True, text=True)
    assert result.returncode == 0, result.stderr
    assert result.stdout.startswith("ab")


def test_a_folders_reference_to_code_is_neither_kept_nor_run(tmp_path: Path) -> None:
    """A folder from the hub refers to its repository; a model saved from it refers to the file in its own folder."""
    model = save("LagwiseForCausalLM", tmp_path / "a")
    path = tmp_path / "a" / "config.json"
    config = json.loads(path.read_text())
    planted = dict.fromkeys(config["auto_map"], "somebody/else--planted.Planted")
    path.write_text(json.dumps({**config, "auto_map": planted}))
    load_tokenizer("bytes").save_pretrained(tmp_path / "a")
    for loaded in (
        load_model(tmp_path / "a")[0],
        AutoModelForCausalLM.from_pretrained(tmp_path / "a", trust_remote_code=True),
        AutoModelForCausalLM.from_pretrained(tmp_path / "a"),
    ):
        assert type(loaded) is type(model)
        loaded.save_pretrained(tmp_path / "b")
        assert json.loads((tmp_path / "b" / "config.json").read_text())["auto_map"] == config["auto_map"]
    assert AutoConfig.from_pretrained(tmp_path / "a").auto_map == config["auto_map"]


def test_conversions_have_the_file_too(tmp_path: Path) -> None:
    save("LagwiseForCausalLM", tmp_path / "a").to_recurrent(1e-2).save_pretrained(tmp_path / "b")
    assert (tmp_path / "b" / "modeling_lagwise.py").read_text() == (tmp_path / "a" / "modeling_lagwise.py").read_text()


def test_a_model_made_from_a_configuration_needs_no_confirmation() -> None:
    """Its ``config.auto_map`` is set, since programs also read it from models in memory."""
    config = LagwiseConfig(hidden_size=8, num_hidden_layers=1)
    assert "AutoModelForCausalLM" in config.auto_map
    assert isinstance(AutoModelForCausalLM.from_config(config), lagwise.LagwiseForCausalLM)


@pytest.mark.parametrize("kind", [LagwiseConfig, LagwiseLinearConfig])
def test_a_misspelt_option_is_an_error(kind: type) -> None:
    with pytest.raises(
        ValueError, match=rf"unknown option of {kind.__name__}: 'vocab_sise'; did you mean 'vocab_size'"
    ):
        kind(vocab_sise=5)
    own = kind(num_labels=3, temperature=0.5, attn_implementation="sdpa")  # what transformers takes for every model
    assert kind(**own.to_dict()).to_dict() == own.to_dict()


def test_attributes_that_other_programs_add_are_kept(tmp_path: Path) -> None:
    config = LagwiseConfig(hidden_size=8)
    config.added = {"by": "another program"}
    config.save_pretrained(tmp_path)
    assert AutoConfig.from_pretrained(tmp_path).added == config.added


@pytest.mark.parametrize(
    "change",
    [{"new_option": 1}, {"architectures": ["LagwiseForNews"]}, {"block": {"name": "new"}}, {"hidden_size": 9}],
    ids=str,
)
def test_a_folder_of_a_newer_version_says_so(change: dict[str, object], tmp_path: Path) -> None:
    lagwise.LagwiseForCausalLM(LagwiseConfig(hidden_size=8, num_hidden_layers=1)).save_pretrained(tmp_path)
    load_tokenizer("bytes").save_pretrained(tmp_path)
    values = json.loads((tmp_path / "config.json").read_text())
    for version, says in (("99.1", True), ("0.2.0", False), ("unknown", False)):
        (tmp_path / "config.json").write_text(json.dumps({**values, "lagwise_version": version}))
        load_model(tmp_path)
        (tmp_path / "config.json").write_text(json.dumps({**values, "lagwise_version": version, **change}))
        if "new_option" in change and not says:
            assert load_model(tmp_path)[0].config.new_option == 1
            continue
        with pytest.raises(ValueError, match=r"saved by lagwise 99\.1" if says else "^(?!.*saved by)"):
            load_model(tmp_path)


@pytest.mark.parametrize("name", ["sdpa", "eager"])
def test_attention_of_torch_may_be_asked_for(name: str) -> None:
    config = LagwiseConfig(hidden_size=8, num_hidden_layers=1, block={"name": "mega", "chunk": 4})
    assert AutoModelForCausalLM.from_config(config, attn_implementation=name).config._attn_implementation == "eager"
