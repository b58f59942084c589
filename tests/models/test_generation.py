"""Transformers' `generate` with mixer states, against recomputation for every token."""

from __future__ import annotations

import contextlib
import json
import time
from pathlib import Path
from typing import Any

import pytest
import torch
from tiny_models import LIMIT, RECIPES, VARIANTS, tiny
from torch import Tensor
from transformers import TextStreamer, pipeline

from lagwise.data import load_tokenizer
from lagwise.data.tokenizers import word_tokenizer
from lagwise.models import LagwiseForCausalLM, StreamingCache, generate_text, generation, load_model

every_recipe = pytest.mark.parametrize("recipe", [*RECIPES, *VARIANTS])
NEW = 8
GREEDY: dict[str, Any] = {"do_sample": False, "max_new_tokens": NEW, "min_new_tokens": NEW, "pad_token_id": 257}
BEAMS = {**GREEDY, "num_beams": 3}


def prompt(rows: int = 2, length: int = 40) -> Tensor:
    return torch.randint(0, 256, (rows, length))


def left_padded(*prompts: Tensor) -> dict[str, Tensor]:
    length = max(p.shape[1] for p in prompts)
    pads = [length - p.shape[1] for p in prompts]
    ids = torch.cat([torch.nn.functional.pad(p, (n, 0), value=257) for p, n in zip(prompts, pads, strict=True)])
    return {"input_ids": ids, "attention_mask": (torch.arange(length) >= torch.tensor(pads)[:, None]).long()}


@every_recipe
def test_greedy_equals_the_argmax_of_full_forward_passes(recipe: str) -> None:
    model, ids = tiny(recipe, sharp=True), prompt()
    expected, logits = ids, []
    for _ in range(NEW):
        logits.append(model(expected, use_cache=False).logits[:, -1])
        expected = torch.cat([expected, logits[-1].argmax(-1, keepdim=True)], dim=1)
    assert len(set(expected[:, 40:].flatten().tolist())) > 2  # it says something
    for chunk in (None, 1, 16):
        out = model.generate(ids, prefill_chunk_size=chunk, return_dict_in_generate=True, output_logits=True, **GREEDY)
        assert torch.equal(out.sequences, expected)
        torch.testing.assert_close(torch.stack(out.logits).double(), torch.stack(logits), rtol=1e-5, atol=1e-5)


@every_recipe
def test_sampling_and_beams_equal_recomputation(recipe: str) -> None:
    """Also in single precision."""
    model, ids = tiny(recipe, sharp=True).float(), prompt()
    sampling = {**GREEDY, "do_sample": True, "num_return_sequences": 3, "top_p": 0.9}
    for options in ({**BEAMS, "num_return_sequences": 2}, sampling):
        results = []
        for extra in ({}, {"use_cache": False}):
            torch.manual_seed(1)
            results.append(model.generate(ids, **options, **extra))
        assert results[0].shape == (2 * options.get("num_return_sequences", 1), 40 + NEW)
        assert torch.equal(*results), options


@every_recipe
def test_prompts_of_very_different_lengths(recipe: str) -> None:
    model, prompts = tiny(recipe, sharp=True), [prompt(1, 1), prompt(1, 60)]
    batch = left_padded(*prompts)
    for options in (GREEDY, BEAMS):
        alone = [model.generate(each, **options)[0] for each in prompts]
        for extra in ({}, {"use_cache": False}, {"prefill_chunk_size": 16}):  # in most chunks one row has nothing
            together = model.generate(**batch, **options, **extra)
            assert torch.equal(together[0, 59:], alone[0]), extra
            assert torch.equal(together[1], alone[1]), extra


@every_recipe
def test_continuing_from_a_returned_cache(recipe: str) -> None:
    """For a padded batch, with the generated text and further tokens."""
    model, batch, more = tiny(recipe, sharp=True), left_padded(prompt(1, 5), prompt(1, 31)), prompt(2, 9)
    first = model.generate(**batch, return_dict_in_generate=True, **GREEDY)
    assert isinstance(first.past_key_values, StreamingCache)
    ids = torch.cat([first.sequences, more], dim=1)
    mask = torch.nn.functional.pad(batch["attention_mask"], (0, ids.shape[1] - 31), value=1)
    anew = model.generate(ids, attention_mask=mask, **GREEDY)
    for extra in ({}, {"prefill_chunk_size": 4}):
        first = model.generate(**batch, return_dict_in_generate=True, **GREEDY)
        more = model.generate(ids, attention_mask=mask, past_key_values=first.past_key_values, **GREEDY, **extra)
        assert torch.equal(more, anew), extra


@every_recipe
def test_prompts_of_embeddings(recipe: str) -> None:
    model, ids = tiny(recipe, sharp=True), prompt()
    embedded = model.get_input_embeddings()(ids)
    assert torch.equal(model.generate(inputs_embeds=embedded, **GREEDY), model.generate(ids, **GREEDY)[:, 40:])


class TestStopping:
    """Each row ends independently."""

    def test_at_the_end_token(self) -> None:
        model, ids = tiny("tnn-lm", sharp=True), prompt(3)
        whole = model.generate(ids, **GREEDY)
        end = int(whole[0, 45])
        stopped = model.generate(ids, **{**GREEDY, "min_new_tokens": None}, eos_token_id=end)
        for row, full in zip(stopped, whole, strict=True):
            places = (full[40:] == end).nonzero().flatten().tolist()
            length = 40 + (places[0] + 1 if places else NEW)  # pads follow
            assert torch.equal(row[:length], full[:length])
            assert (row[length:] == 257).all()

    def test_at_a_stop_text(self) -> None:
        model, tokenizer, ids = tiny("tnn-lm", sharp=True), load_tokenizer("bytes"), prompt(1)
        ascii_only = {"suppress_tokens": [*range(33), *range(127, 258)]}
        greedy = model.generate(ids, **ascii_only, **GREEDY)
        said = tokenizer.decode(greedy[0, 40:])
        stopped = model.generate(ids, stop_strings=[said[3:5]], tokenizer=tokenizer, **ascii_only, **GREEDY)
        assert tokenizer.decode(stopped[0, 40:]) == said[: said.find(said[3:5]) + 2]

    def test_after_a_time_limit(self) -> None:
        model, began = tiny("tnn-lm"), time.monotonic()
        out = model.generate(prompt(), do_sample=False, max_new_tokens=10**6, max_time=0.2, pad_token_id=257)
        assert out.shape[1] > 41
        assert time.monotonic() - began < 10


def test_streamers_get_every_token(capsys: pytest.CaptureFixture[str]) -> None:
    model, tokenizer = tiny("mega-lm", sharp=True), load_tokenizer("bytes")
    ids = tokenizer("a prompt", return_tensors="pt")["input_ids"]
    out = model.generate(ids, streamer=TextStreamer(tokenizer), prefill_chunk_size=3, **GREEDY)
    assert capsys.readouterr().out == tokenizer.decode(out[0]) + "\n"


def test_caches_of_other_kinds_are_refused() -> None:
    for name in ("quantized", "offloaded"):
        with pytest.raises(ValueError, match=f"cache_implementation='{name}' is not supported"):
            tiny("tnn-lm").generate(prompt(1), cache_implementation=name, **GREEDY)


class TestText:
    """The functions behind `lagwise generate`."""

    @pytest.fixture
    def model(self) -> LagwiseForCausalLM:
        return tiny("tnn-lm", sharp=True)

    def test_pipeline_and_streamed_text(self, tmp_path: Path) -> None:
        model, tokenizer = tiny("tnn-lm", sharp=True).float(), load_tokenizer("bytes")
        model.save_pretrained(tmp_path)
        tokenizer.save_pretrained(tmp_path)
        writer = pipeline("text-generation", model=str(tmp_path), device="cpu")
        texts = writer(["one", "a longer prompt"], max_new_tokens=6, do_sample=False, batch_size=2)
        assert texts[0][0]["generated_text"].startswith("one")
        assert texts[1][0]["generated_text"].startswith("a longer prompt")
        loaded, same_tokenizer = load_model(tmp_path)
        pieces: list[str] = []
        text = generate_text(loaded, same_tokenizer, "def ", max_new_tokens=30, seed=3, write=pieces.append)
        assert "".join(pieces) == text
        assert text.startswith("def ")
        assert text == generate_text(loaded, same_tokenizer, "def ", max_new_tokens=30, seed=3)
        greedy = [generate_text(loaded, same_tokenizer, "", max_new_tokens=5, temperature=0) for _ in range(2)]
        assert greedy[0] == greedy[1]
        with pytest.raises(ValueError, match="top_p"):
            generate_text(loaded, same_tokenizer, "x", top_p=0)

    @pytest.mark.parametrize("prompt", ["héé \N{SNOWMAN}", "a", ""])
    def test_pieces_add_up_to_the_text_of_all_tokens(self, model: LagwiseForCausalLM, prompt: str) -> None:
        """Also for random bytes, which are rarely whole characters."""
        tokenizer = load_tokenizer("bytes")
        text = generate_text(model, tokenizer, prompt, max_new_tokens=60, temperature=5, seed=1)
        ids = tokenizer(prompt or tokenizer.eos_token, return_tensors="pt")["input_ids"]
        torch.manual_seed(1)
        options = {"do_sample": True, "temperature": 5.0, "top_p": 0.95, "top_k": 0, "pad_token_id": 257}
        out = model.generate(ids, max_new_tokens=60, **options)
        assert text == tokenizer.decode(out[0], skip_special_tokens=True)
        added = generate_text(model, tokenizer, prompt, max_new_tokens=60, temperature=5, seed=1, echo=False)
        assert prompt + added == text

    def test_long_prompts_are_processed_in_chunks(
        self, model: LagwiseForCausalLM, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        tokenizer, seen = load_tokenizer("bytes"), []
        whole = generate_text(model, tokenizer, "abc" * 20, max_new_tokens=5, temperature=0)
        monkeypatch.setattr(generation, "PREFILL", 25)
        model.model.register_forward_pre_hook(
            lambda _, args, kwargs: seen.append(kwargs["input_ids"].shape[1]), with_kwargs=True
        )
        assert generate_text(model, tokenizer, "abc" * 20, max_new_tokens=5, temperature=0) == whole
        assert seen == [25, 25, 10, 1, 1, 1, 1]

    @pytest.mark.parametrize("words", [True, False])
    def test_long_prompts_are_encoded_in_pieces(
        self, model: LagwiseForCausalLM, monkeypatch: pytest.MonkeyPatch, words: bool
    ) -> None:
        tokenizer = word_tokenizer(["one", "two"]) if words else load_tokenizer("bytes")
        prompt = "one two two " * 20 if words else "où est la \N{SNOWMAN} ? " * 20
        options: dict[str, Any] = {"max_new_tokens": 5, "temperature": 0}
        model.generation_config.suppress_tokens = list(range(4, 258)) if words else None
        whole = [generate_text(model, tokenizer, prompt, echo=echo, **options) for echo in (True, False)]
        monkeypatch.setattr(generation, "_PIECE", 30)
        cut: list[str] = []
        text = generate_text(model, tokenizer, prompt, write=cut.append, **options)
        assert [text, generate_text(model, tokenizer, prompt, echo=False, **options)] == whole
        assert len(cut) > 4
        assert "".join(cut) == text

    def test_the_tokenizer_gets_only_short_pieces(self, model: LagwiseForCausalLM) -> None:
        """An encoding takes hundreds of bytes of memory per token."""
        seen: list[int] = []

        class Spy:
            def __init__(self) -> None:
                self.tokenizer = load_tokenizer("bytes")

            def __getattr__(self, name: str) -> Any:
                return getattr(self.tokenizer, name)

            def __call__(self, text: str, **options: Any) -> Any:
                seen.append(len(text))
                return self.tokenizer(text[:10], **options)

        spy: Any = Spy()
        generate_text(model, spy, "a word " * 100_000, max_new_tokens=1)
        assert sum(seen) == 700_000
        assert max(seen) <= 1 << 17

    @pytest.mark.parametrize("options", [{"temperature": float("nan")}, {"temperature": float("inf")}])
    @pytest.mark.parametrize("more", [{}, {"top_p": float("nan")}, {"max_new_tokens": 0}, {"max_new_tokens": 2.5}])
    def test_options_out_of_range(self, model: LagwiseForCausalLM, options: dict, more: dict) -> None:
        with pytest.raises(ValueError, match=r"temperature|max_new_tokens"):
            generate_text(model, load_tokenizer("bytes"), "a", **{**options, **more})

    def test_it_stops_before_a_stop_text(self, model: LagwiseForCausalLM) -> None:
        """The stop text may begin anywhere in the continuation, but not in the prompt, and may contain non-ASCII
        characters."""
        said = Fixed(load_tokenizer("bytes"), "one twö two three")
        for stops, end in (
            (["two"], "one twö "),
            (["ö t"], "one tw"),
            (["three", "e t"], "on"),
            (["threes"], "one twö two three"),
            (["said"], "one twö two three"),
            (["d o", "one"], ""),
        ):
            pieces: list[str] = []
            text = generate_text(
                said.model(model),
                said.tokenizer,
                "said ",
                max_new_tokens=18,
                temperature=0,
                stop=stops,
                write=pieces.append,
            )
            assert text == "".join(pieces) == "said " + end, stops

    def test_invalid_bytes_do_not_block_the_output(self, model: LagwiseForCausalLM) -> None:
        said = Fixed(load_tokenizer("bytes"), "")
        said.ids = [0xFF] * 90
        pieces: list[str] = []
        generate_text(said.model(model), said.tokenizer, "a", max_new_tokens=90, temperature=0, write=pieces.append)
        assert len(pieces) >= 10

    def test_an_interruption_keeps_the_text_so_far(self, model: LagwiseForCausalLM) -> None:
        """Including text held back because it could be the beginning of a stop text."""
        said = Fixed(load_tokenizer("bytes"), "one tw", last=KeyboardInterrupt)
        pieces: list[str] = []
        lines: list[str] = []
        with pytest.raises(KeyboardInterrupt):
            generate_text(
                said.model(model),
                said.tokenizer,
                "abc",
                temperature=0,
                stop=["two"],
                write=pieces.append,
                report=lines.append,
            )
        assert pieces == ["abc", *"one ", "tw"]
        assert lines[0].startswith("prompt: 3 tokens in 0.")
        assert "added: 6" in lines[0]
        assert "tokens/s" in lines[0]

    def test_an_empty_prompt_starts_a_document(self, model: LagwiseForCausalLM) -> None:
        tokenizer = word_tokenizer(["one", "two"])
        texts = {generate_text(model, tokenizer, blank, max_new_tokens=5, temperature=0) for blank in ("", " ", "\n\n")}
        assert len(texts) == 1

    @pytest.mark.parametrize("answer", ["y", "yes"])
    def test_a_tokenizers_own_code_is_never_run(
        self, model: LagwiseForCausalLM, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, answer: str
    ) -> None:
        """The confirmation that transformers asks for on standard input must not be possible."""
        model.save_pretrained(tmp_path)
        load_tokenizer("bytes").save_pretrained(tmp_path)
        path = tmp_path / "tokenizer_config.json"
        own = {"auto_map": {"AutoTokenizer": ["planted.Planted", "planted.Planted"]}, "tokenizer_class": "Planted"}
        path.write_text(json.dumps({**json.loads(path.read_text()), **own}))
        (tmp_path / "planted.py").write_text(
            f"open({str(tmp_path / 'run')!r}, 'w').close()\n"
            "from transformers import PreTrainedTokenizerFast\nclass Planted(PreTrainedTokenizerFast): pass\n"
        )
        monkeypatch.setattr("builtins.input", lambda *_: answer)
        monkeypatch.setenv("HF_HOME", str(tmp_path / "hf"))
        for load in (load_model, lambda folder: load_tokenizer(str(folder))):
            with contextlib.suppress(ValueError):
                load(tmp_path)
        assert not (tmp_path / "run").exists()

    def test_stop_must_be_a_list_of_texts(self, model: LagwiseForCausalLM) -> None:
        for stop in ("text", [""]):
            with pytest.raises(ValueError, match="stop must be a list of non-empty texts"):
                generate_text(model, load_tokenizer("bytes"), "a", stop=stop)


class TestBadInput:
    """Errors that are raised before the first forward pass."""

    @pytest.fixture
    def model(self, monkeypatch: pytest.MonkeyPatch) -> LagwiseForCausalLM:
        model = tiny("transformer-learned-lm")
        monkeypatch.setattr(model.model, "embed_tokens", None)
        return model

    def test_no_prompt(self, model: LagwiseForCausalLM) -> None:
        with pytest.raises(ValueError, match="begin an empty prompt with the end-of-text token"):
            model.generate(prompt(1, 0), **GREEDY)
        ids = torch.tensor([[257, 257], [1, 2]])
        for mask in (torch.tensor([[0, 0], [1, 1]]), None):  # without a mask pads say so
            for extra in ({}, {"use_cache": False}, {"prefill_chunk_size": 1}, BEAMS):
                with pytest.raises(ValueError, match="row 0 of attention_mask is all padding"):
                    model.generate(ids, attention_mask=mask, **{**GREEDY, **extra})

    def test_padding_on_the_right(self, model: LagwiseForCausalLM) -> None:
        for extra in ({}, {"use_cache": False}):
            with pytest.raises(ValueError, match="pad them on the left"):
                model.generate(prompt(1, 3), attention_mask=torch.tensor([[1, 1, 0]]), **GREEDY, **extra)

    def test_longer_than_the_limit(self, model: LagwiseForCausalLM) -> None:
        for length, extra, message in (
            (LIMIT, {}, f"at most {LIMIT} tokens; the prompt has {LIMIT}, so at most 0 can be added; shorten it"),
            (LIMIT + 9, {"max_new_tokens": None}, f"the prompt has {LIMIT + 9}, so at most 0 can be added; shorten it"),
            (100, {"max_new_tokens": 29}, "the prompt has 100, so at most 28 can be added; ask for fewer than 29"),
            (100, {"max_new_tokens": None, "max_length": 140}, "at most 28 can be added; ask for fewer than 40"),
        ):
            with pytest.raises(ValueError, match=message):
                model.generate(prompt(1, length), **{**GREEDY, **extra})
        with pytest.raises(ValueError, match="the prompt has 125, so at most 3 can be added"):
            model.generate(inputs_embeds=torch.zeros(1, 125, 16), **GREEDY)

    @pytest.mark.filterwarnings("ignore:Using the model-agnostic default")
    def test_up_to_the_limit(self) -> None:
        model = tiny("transformer-learned-lm")
        options = {"do_sample": False, "pad_token_id": 257}
        assert model.generate(prompt(1, 100), max_new_tokens=28, **options).shape[1] == LIMIT
        assert model.generate(prompt(1, 120), **options).shape[1] == LIMIT  # the 20 that nobody asked for

    def test_caches_of_other_models(self) -> None:
        ids = prompt(2, 5)
        models = {recipe: tiny(recipe) for recipe in RECIPES}
        caches = {recipe: model(ids).past_key_values for recipe, model in models.items()}
        whole = torch.cat([ids, ids], dim=1)
        for recipe in RECIPES:
            for other, cache in caches.items():
                if other != recipe:
                    with pytest.raises(ValueError, match="filled by another model"):
                        models[recipe].generate(whole, past_key_values=cache, **GREEDY)
        with pytest.raises(ValueError, match="filled by another model"):
            tiny("tnn-lm", hidden_size=8).generate(whole, past_key_values=caches["tnn-lm"], **GREEDY)
        with pytest.raises(ValueError, match="filled by another model"):  # alike but for its weights
            tiny("tnn-lm").generate(whole, past_key_values=caches["tnn-lm"], **GREEDY)
        with pytest.raises(ValueError, match="StreamingCache of 3 layers, got one of 2"):
            tiny("tnn-lm", num_hidden_layers=3).generate(whole, past_key_values=caches["tnn-lm"], **GREEDY)
        with pytest.raises(ValueError, match="holds a batch of 2, the input is a batch of 6"):
            models["tnn-lm"].generate(whole, past_key_values=caches["tnn-lm"], **BEAMS)
        assert models["tnn-lm"].generate(whole, past_key_values=caches["tnn-lm"], **GREEDY).shape == (2, 10 + NEW)

    def test_no_new_tokens_for_a_cache(self) -> None:
        """Otherwise the text would silently be processed twice or not at all."""
        model, ids = tiny("tnn-lm"), prompt(1, 8)
        cache = model(ids).past_key_values
        for given in (ids, ids[:, :3]):
            with pytest.raises(ValueError, match="past_key_values holds 8 tokens already"):
                model.generate(given, past_key_values=cache, **GREEDY)


class Fixed:
    """Makes a model generate a given text for any prompt, and then end it or raise an error."""

    def __init__(self, tokenizer: Any, text: str, last: type[BaseException] | None = None):
        self.tokenizer, self.ids, self.last = tokenizer, tokenizer(text)["input_ids"], last

    def model(self, model: LagwiseForCausalLM) -> LagwiseForCausalLM:
        said = iter([*self.ids, self.tokenizer.eos_token_id])

        def say(module: Any, args: Any, logits: Tensor) -> Tensor:
            token = next(said)
            if token == self.tokenizer.eos_token_id and self.last is not None:
                raise self.last
            return torch.nn.functional.one_hot(torch.tensor([[token]]), 258).double()

        model.lm_head._forward_hooks.clear()
        model.lm_head.register_forward_hook(say)
        model.generation_config.eos_token_id = self.tokenizer.eos_token_id
        return model
