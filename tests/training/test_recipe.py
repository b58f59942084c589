"""Recipes are checked key by key."""

from __future__ import annotations

import itertools
from pathlib import Path

import pytest

from lagwise.models import LagwiseConfig
from lagwise.models.presets import PRESETS
from lagwise.training.recipe import LINEAR, load_recipe, recipe_names


def test_shipped_recipes(tmp_path: Path) -> None:
    """They have descriptions, their positions do not hide the embeddings, and one that is written is the same, with
    a word for a model, of which each has its turn."""
    again = tmp_path / "again.yaml"
    words = itertools.cycle([*(f"model={word}" for word in (*PRESETS, LINEAR)), "model.init_from=run"])
    for name in recipe_names():
        recipe = load_recipe(name)
        assert recipe.description, name
        assert recipe.model["num_hidden_layers"] >= 1, name
        for made in (recipe, load_recipe(name, ["model=mega"])) if name.startswith("lra-") else (recipe,):
            model = LagwiseConfig(**made.model)
            if model.position_embedding == "sinusoidal":
                scale = model.hidden_size**0.5 if model.scale_embeddings else 1.0
                assert model.initializer_range * scale > 0.3, name  # sinusoids have a root mean square of 0.7
        written, word = tmp_path / f"{name}.yaml", [next(words)]
        written.write_text(recipe.to_yaml())
        assert load_recipe(str(written)) == recipe, name
        changed = load_recipe(name, word)
        assert load_recipe(str(written), word) == changed, (name, word)
        again.write_text(changed.to_yaml())
        assert load_recipe(str(again)) == changed, (name, word)


def test_overrides_are_typed() -> None:
    own = ["training.steps=7", "training.learning_rate=1e-4", "data.source=x", "data.lengths=[512, 64]"]
    recipe = load_recipe("tnn-lm", [*own, "model.block.token_mixer.kernel.decay=0.9"])
    assert (recipe.data.lengths, recipe.data.evaluate_length) == ([512, 64], None)
    assert (recipe.training.steps, recipe.training.learning_rate, recipe.data.source) == (7, 1e-4, "x")
    assert recipe.model["block"]["token_mixer"]["kernel"]["decay"] == 0.9


@pytest.mark.parametrize(
    ("word", "kept"),
    [("tnn", (3, 1)), ("ski-tnn", (3, 1)), ("transformer", (None, 1)), ("mega", (None, 1)), ("tcn-mlp", (None, 1))],
)
def test_models_of_images_by_a_word_keep_expansions(word: str, kept: tuple[int | None, int]) -> None:
    block = load_recipe("tnn-deit-tiny", [f"model={word}"]).model["block"]
    assert (block.get("token_mixer", {}).get("expansion"), block["channel_mixer"]["expansion"]) == kept


def test_another_model_has_as_many_layers_as_the_blocks_of_a_chain() -> None:
    model = load_recipe("best-lm", ["model=mega", "model.hidden_size=64"]).model
    assert (model["block"]["name"], model["hidden_size"], model["num_hidden_layers"]) == ("mega", 64, 4)
    assert load_recipe("best-lm", ["model.num_hidden_layers=2", "model=tnn"]).model["num_hidden_layers"] == 2


def test_the_parts_of_a_chain_cannot_be_set_by_their_names() -> None:
    kernel = "model.block.token_mixer.kernel.name=s4d"
    with pytest.raises(ValueError, match=r"block.token_mixer.kernel.name cannot be set, .* tnn-lm"):
        load_recipe("best-lm", [kernel])
    assert load_recipe("best-lm", ["model=tnn", kernel]).model["block"]["token_mixer"]["kernel"]["name"] == "s4d"
    assert load_recipe("best-lm", ["model.block={name: prenorm}"]).model["block"] == {"name": "prenorm"}


def test_another_part_keeps_the_options_that_it_has() -> None:
    mixer = "model.block.token_mixer"
    own = load_recipe("tnn-lm").model["block"]["token_mixer"]
    assert own["kernel"].keys() == {"name", "layers", "hidden"}
    changed = load_recipe("tnn-lm", [f"{mixer}.kernel.modes=4", f"{mixer}.kernel.name=s4d"])
    assert changed.model["block"]["token_mixer"] == {**own, "kernel": {"name": "s4d", "modes": 4}}
    frequency = load_recipe("tnn-lm", [f"{mixer}.kernel.name=frequency"]).model["block"]["token_mixer"]["kernel"]
    assert {k: v for k, v in frequency.items() if k != "name"}.items() <= own["kernel"].items()
    assert load_recipe("tnn-lm", [f"{mixer}.kernel.name=rpe"]) == load_recipe("tnn-lm")
    tcn = load_recipe("tnn-lm", [f"{mixer}.name=tcn", f"{mixer}.depth=3"]).model["block"]["token_mixer"]
    assert (tcn["name"], tcn["depth"], "kernel" in tcn) == ("tcn", 3, False)


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("training.step=7", r"did you mean 'steps'"),
        ("steps=7", r"did you mean training\.steps=\.\.\.\?"),
        ("nonsense", "written section.key=value"),
        ("training.steps=many", "training.steps must be an integer, got 'many'"),
        ("training.steps=true", "an integer"),
        ("training.learning_rate=fast", "a finite number"),
        ("training.steps=0", "training.steps must be at least 1, got 0"),
        ("training.schedule=cosin", "did you mean 'cosine'"),
        ("training.precision=half", r"unknown training\.precision"),
        ("training.optimizer=muonn", r"unknown training\.optimizer: 'muonn'; did you mean 'muon'"),
        ("training.compile=reduce_overhead", "'reduce_overhead'; did you mean 'reduce-overhead'"),
        ("data.length=1", "at least 2"),
        ("model=fd_tnn", "unknown model: 'fd_tnn'; did you mean 'fd-tnn'"),
        ("data.evaluate_length=1", r"data\.evaluate_length must be at least 2"),
        ("data.lengths=[]", r"data\.lengths must be integers"),
        ("data.lengths=[64, 1]", r"data\.lengths\[1\] must be at least 2, got 1"),
        ("data.lengths=[512, true]", r"data\.lengths\[1\] must be an integer, got True"),
        ("data.lengths=[256, 128]", r"data\.length must be the largest of data\.lengths \[256, 128\], got 512"),
        ("data.lengths=512", r"data\.lengths must be a list, got 512"),
        ("training.accumulate=3", "must divide"),
        ("data.source.x=1", "'source' is a value"),
        ("training.clip=-1", "at least 0"),
        ("training.beta2=7", r"training.beta2 must be less than 1(\.0)?, got 7"),
        ("training.steps=[", "not valid YAML"),
        ("training.steps=010", "training.steps must be an integer, got '010'"),
        ("training.steps=1:30", "training.steps must be an integer, got '1:30'"),
        ("training.epsilon=0", "training.epsilon must be greater than 0"),
        ("training.workers=100000", "training.workers must be at most 128"),
        ("data.tokenizer=", "has no value; write data.tokenizer=null for none"),
        ("data.tokenizer=# words", "has no value"),
        ("data.source=''", "data.source must not be empty"),
        ("data.source=' '", "data.source must not be empty"),
        ("training.steps", "written section.key=value"),
        ("trainning.steps=5", "did you mean 'training'"),
    ],
)
def test_wrong_overrides_are_named(override: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        load_recipe("tnn-lm", ["data.source=stdlib", override])


def test_the_polynomial_schedule_ends_at_a_rate() -> None:
    with pytest.raises(ValueError, match=r"training\.learning_rate must be over 1e-07"):
        load_recipe("tnn-lm", ["training.schedule=polynomial", "training.learning_rate=1e-8"])


def test_a_section_without_content_can_be_filled(tmp_path: Path) -> None:
    (tmp_path / "own.yaml").write_text("training:\n")
    assert load_recipe(str(tmp_path / "own.yaml"), ["training.steps=7"]).training.steps == 7


def test_a_file_that_is_missing(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="no recipe file"):
        load_recipe(str(tmp_path / "none.yaml"))


def test_options_that_are_gone_do_not_keep_earlier_runs_from_loading(tmp_path: Path) -> None:
    unused = "data: {streaming: false, shuffle_tokens: 4194304}\ntraining: {steps: 7, carry_states: 0, average: 0.0}"
    (tmp_path / "old.yaml").write_text(unused)
    assert load_recipe(str(tmp_path / "old.yaml")).training.steps == 7
    (tmp_path / "old.yaml").write_text("training: {carry_states: 16}")
    with pytest.warns(UserWarning, match=r"training\.carry_states of the recipe is gone and is ignored"):
        load_recipe(str(tmp_path / "old.yaml"))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("training: {steps: 5, steps: 6}", "'steps' occurs twice, again in line 1"),
        ("training:\n  steps: 5\ndata: {}\ntraining:\n  seed: 1", "'training' occurs twice, again in line 4"),
        ("training: {1: 2}", "keys of a recipe must be text, got 1"),
        ("1: 2", "keys of a recipe must be text, got 1"),
        ("model: [unclosed", "not valid YAML"),
        ("modell: {}", "did you mean 'model'"),
        *((f"words: {words}", "must be a mapping, got 3") for words in ("3", "{mega: 3}")),
        ("words: {megaa: {hidden_size: 3}}", "unknown word of a recipe: 'megaa'; did you mean 'mega'"),
    ],
)
def test_wrong_files_are_named(tmp_path: Path, text: str, message: str) -> None:
    (tmp_path / "own.yaml").write_text(text)
    for overrides in ([], ["model=mega"]):
        with pytest.raises(ValueError, match=message):
            load_recipe(str(tmp_path / "own.yaml"), overrides)


def test_a_word_brings_the_sizes_that_a_recipe_has_for_it() -> None:
    made = load_recipe("lra-listops", ["model=mega", "model.block.chunk=64"]).model
    assert (made["num_hidden_layers"], made["hidden_size"], made["norm"]) == (6, 80, "layer")
    assert (made["block"]["value_size"], made["block"]["memory"]["name"], made["block"]["chunk"]) == (160, "ema", 64)
    assert load_recipe("lra-listops", ["model=tcnca"]).model["block"]["memory"]["name"] == "tcn"
    assert load_recipe("lra-listops", ["model=tnn"]).model["hidden_size"] == 128
    assert "\nwords:" not in load_recipe("tnn-lm").to_yaml()
