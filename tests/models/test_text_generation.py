"""The functions behind `lagwise generate`: text in, text out."""

from __future__ import annotations

import json
import math
from contextlib import closing, suppress
from pathlib import Path
from typing import Any

import pytest
import torch
from tiny_models import tiny
from torch import Tensor
from transformers import pipeline

from lagwise.data import load_tokenizer
from lagwise.data.tokenizers import word_tokenizer
from lagwise.models import LagwiseForCausalLM, generate_text, generation, load_model
from lagwise.serving.scheduler import Scheduler


@pytest.fixture
def model() -> LagwiseForCausalLM:
    return tiny("tnn-lm", sharp=True)


def test_pipeline_and_streamed_text(tmp_path: Path, device: torch.device) -> None:
    model, tokenizer = tiny("tnn-lm", sharp=True).float(), load_tokenizer("bytes")
    model.save_pretrained(tmp_path)
    tokenizer.save_pretrained(tmp_path)
    writer = pipeline("text-generation", model=str(tmp_path), device=device)
    texts = writer(["one", "a longer prompt"], max_new_tokens=6, do_sample=False, batch_size=2)
    assert texts[0][0]["generated_text"].startswith("one")
    assert texts[1][0]["generated_text"].startswith("a longer prompt")
    loaded, same_tokenizer = load_model(tmp_path, device=device)
    chunks: list[str] = []
    text = generate_text(loaded, same_tokenizer, "def ", max_new_tokens=30, seed=3, write=chunks.append)
    assert "".join(chunks) == text
    assert text.startswith("def ")
    assert text == generate_text(loaded, same_tokenizer, "def ", max_new_tokens=30, seed=3)
    greedy = [generate_text(loaded, same_tokenizer, "", max_new_tokens=5, temperature=0) for _ in range(2)]
    assert greedy[0] == greedy[1]


def test_names_of_special_tokens_in_a_prompt(model: LagwiseForCausalLM) -> None:
    """They are text, as in the training data, unless they are to be these tokens."""
    tokenizer = load_tokenizer("bytes")
    prompt = "a<|endoftext|>b"
    assert torch.cat(generation.encode_prompt(tokenizer, prompt)).tolist() == list(prompt.encode())
    assert torch.cat(generation.encode_prompt(tokenizer, prompt, special=True)).tolist() == [97, 256, 98]
    options: dict[str, Any] = {"max_new_tokens": 3, "temperature": 0}
    assert generate_text(model, tokenizer, prompt, **options).startswith(prompt)
    assert generate_text(model, tokenizer, prompt, special=True, **options).startswith("ab")
    assert tokenizer("<|endoftext|>")["input_ids"] == [256]  # as others call it


@pytest.mark.parametrize("prompt", ["héé \N{SNOWMAN}", "a", ""])
def test_pieces_add_up_to_the_text_of_all_tokens(model: LagwiseForCausalLM, prompt: str) -> None:
    """Also for random bytes, which are rarely whole characters. A seed gives the text that a server gives."""
    tokenizer = load_tokenizer("bytes")
    model.generation_config.eos_token_id = tokenizer.eos_token_id
    text = generate_text(model, tokenizer, prompt, max_new_tokens=60, temperature=5, seed=1)
    ids = tokenizer(prompt or tokenizer.eos_token)["input_ids"]
    added = [*generation.sampled(model, ids, generation.Sampling(60, 5.0, 0.95, 1))]
    assert text == tokenizer.decode([*ids, *added], skip_special_tokens=True)
    scheduler = Scheduler(model, tokenizer)
    with closing(scheduler.submit(ids, generation.Sampling(60, 5.0, 0.95, 1))) as answer:
        while scheduler.turn():
            pass
        assert prompt + answer.take() == text
    rest = generate_text(model, tokenizer, prompt, max_new_tokens=60, temperature=5, seed=1, echo=False)
    assert prompt + rest == text


def test_long_prompts_are_processed_in_chunks(model: LagwiseForCausalLM, monkeypatch: pytest.MonkeyPatch) -> None:
    tokenizer, seen = load_tokenizer("bytes"), []
    whole = generate_text(model, tokenizer, "abc" * 20, max_new_tokens=5, temperature=0)
    monkeypatch.setattr(generation, "PREFILL", 25)
    model.model.register_forward_pre_hook(
        lambda _, args, kwargs: seen.append(kwargs["input_ids"].shape[1]), with_kwargs=True
    )
    assert generate_text(model, tokenizer, "abc" * 20, max_new_tokens=5, temperature=0) == whole
    assert seen == [25, 25, 10, 1, 1, 1, 1]


@pytest.mark.parametrize("words", [True, False])
def test_long_prompts_are_encoded_in_chunks(
    model: LagwiseForCausalLM, monkeypatch: pytest.MonkeyPatch, words: bool
) -> None:
    tokenizer = word_tokenizer(["one", "two"]) if words else load_tokenizer("bytes")
    prompt = "one two two " * 20 if words else "où est la \N{SNOWMAN} ? " * 20
    options: dict[str, Any] = {"max_new_tokens": 5, "temperature": 0}
    model.generation_config.suppress_tokens = list(range(4, 258)) if words else None
    whole = [generate_text(model, tokenizer, prompt, echo=echo, **options) for echo in (True, False)]
    monkeypatch.setattr(generation, "_CHUNK_CHARACTERS", 30)
    cut: list[str] = []
    text = generate_text(model, tokenizer, prompt, write=cut.append, **options)
    assert [text, generate_text(model, tokenizer, prompt, echo=False, **options)] == whole
    assert len(cut) > 4
    assert "".join(cut) == text


@pytest.mark.parametrize(
    ("options", "message"),
    [
        *(({"temperature": value}, "temperature") for value in (math.nan, math.inf)),
        *(({"top_p": value}, "top_p") for value in (0, math.nan)),
        *(({"max_new_tokens": value}, "max_new_tokens") for value in (0, 2.5)),
        ({"max_new_tokens": 10**9 + 1}, "max_new_tokens must be at most"),
        *(({"stop": value}, "stop must be a list of non-empty texts") for value in ("text", [""])),
        ({"prompt": "a\udc00"}, "half of a UTF-16 pair at character 1"),
    ],
    ids=ascii,
)
def test_options_out_of_range(model: LagwiseForCausalLM, options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        generate_text(model, load_tokenizer("bytes"), **{"prompt": "a", **options})


def test_temperatures_below_1_sample(model: LagwiseForCausalLM) -> None:
    options: dict[str, Any] = {"max_new_tokens": 20, "temperature": 0.9}
    texts = set()
    for seed in range(2):
        torch.manual_seed(seed)
        texts.add(generate_text(model, load_tokenizer("bytes"), "a", **options))
    assert len(texts) == 2


@pytest.mark.parametrize(("ids", "ends"), [(7, {7}), ([7, 8], {7, 8}), (None, set())])
def test_ends_are_those_of_the_generation_config(model: LagwiseForCausalLM, ids: Any, ends: set[int]) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(model.generation_config, "eos_token_id", ids)
        assert generation.end_tokens(model) == ends
        patch.setattr(model, "generation_config", None)
        assert generation.end_tokens(model) == set()


def test_a_word_after_a_short_prompt_has_its_space() -> None:
    tokenizer, chunks = word_tokenizer(["one", "two"]), list[str]()
    writer = generation.TextWriter(tokenizer, [torch.tensor(tokenizer("one")["input_ids"])], (), False, chunks.append)
    writer.take(tokenizer("two")["input_ids"][0])
    writer.end()
    assert "".join(chunks) == " two"


def test_it_stops_before_a_stop_text(model: LagwiseForCausalLM) -> None:
    """The stop text may begin anywhere in the continuation, but not in the prompt, and may contain non-ASCII
    characters."""
    fixed = Fixed(load_tokenizer("bytes"), "one twö two three")
    for stops, end in (
        (["two"], "one twö "),
        (["ö t"], "one tw"),
        (["three", "e t"], "on"),
        (["threes"], "one twö two three"),
        (["said"], "one twö two three"),
        (["d o", "one"], ""),
    ):
        chunks: list[str] = []
        options: dict[str, Any] = {"max_new_tokens": 18, "temperature": 0, "stop": stops, "write": chunks.append}
        text = generate_text(fixed.model(model), fixed.tokenizer, "said ", **options)
        assert text == "".join(chunks) == "said " + end, stops


def test_invalid_bytes_do_not_block_the_output(model: LagwiseForCausalLM) -> None:
    fixed = Fixed(load_tokenizer("bytes"), "")
    fixed.ids = [0xFF] * 90
    chunks: list[str] = []
    generate_text(fixed.model(model), fixed.tokenizer, "a", max_new_tokens=90, temperature=0, write=chunks.append)
    assert len(chunks) >= 10
    writer = generation.TextWriter(load_tokenizer("bytes"), [torch.tensor([65])], (), False, None)
    for number in range(9):
        assert not "".join(writer.texts), number
        writer.take(0xFF)
    assert "".join(writer.texts)


@pytest.mark.parametrize("wrong", range(12))
@pytest.mark.parametrize("characters", ["€", "é€", "😀"])
def test_a_character_after_invalid_bytes_is_kept(wrong: int, characters: str) -> None:
    tokenizer, chunks = load_tokenizer("bytes"), list[str]()
    ids = [0x80] * wrong + list(f"{characters}AB".encode())
    writer = generation.TextWriter(tokenizer, [torch.tensor([65])], (), False, chunks.append)
    for token in ids:
        writer.take(token)
    writer.end()
    assert "".join(chunks) == "\N{REPLACEMENT CHARACTER}" * wrong + f"{characters}AB"


@pytest.mark.parametrize("temperature", [0, 1.0])
@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_logits_that_are_no_numbers_are_an_error(
    model: LagwiseForCausalLM, temperature: float, value: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    logits = torch.randn(1, 258).index_fill(1, torch.tensor([7]), value)
    monkeypatch.setattr(model, "next_logits", lambda ids, cache: logits)
    with pytest.raises(FloatingPointError, match="training may have diverged"):
        generate_text(model, load_tokenizer("bytes"), "abc", temperature=temperature, max_new_tokens=3)


def test_an_interruption_keeps_the_text_so_far(model: LagwiseForCausalLM) -> None:
    """Including text held back because it could be the beginning of a stop text."""
    fixed = Fixed(load_tokenizer("bytes"), "one tw", last=KeyboardInterrupt)
    chunks: list[str] = []
    lines: list[str] = []
    options: dict[str, Any] = {"temperature": 0, "stop": ["two"], "write": chunks.append, "report": lines.append}
    with pytest.raises(KeyboardInterrupt):
        generate_text(fixed.model(model), fixed.tokenizer, "abc", **options)
    assert chunks == ["abc", *"one ", "tw"]
    assert lines[0].startswith("prompt: 3 tokens in 0.")
    assert "added: 6" in lines[0]
    assert "tokens/s" in lines[0]


def test_an_empty_prompt_starts_a_document(model: LagwiseForCausalLM) -> None:
    tokenizer = word_tokenizer(["one", "two"])
    texts = {generate_text(model, tokenizer, blank, max_new_tokens=5, temperature=0) for blank in ("", " ", "\n\n")}
    assert len(texts) == 1


@pytest.mark.parametrize("answer", ["y", "yes"])
def test_a_tokenizers_own_code_is_never_run(
    model: LagwiseForCausalLM, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, answer: str
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
        with suppress(ValueError):
            load(tmp_path)
    assert not (tmp_path / "run").exists()


class Fixed:
    """Makes a model generate a given text for any prompt, and then end it or raise an error."""

    def __init__(self, tokenizer: Any, text: str, last: type[BaseException] | None = None):
        self.tokenizer, self.ids, self.last = tokenizer, tokenizer(text)["input_ids"], last

    def model(self, model: LagwiseForCausalLM) -> LagwiseForCausalLM:
        tokens = iter([*self.ids, self.tokenizer.eos_token_id])

        def say(module: Any, args: Any, logits: Tensor) -> Tensor:
            token = next(tokens)
            if token == self.tokenizer.eos_token_id and self.last is not None:
                raise self.last
            return torch.nn.functional.one_hot(torch.tensor([[token]]), 258).double()

        model.lm_head._forward_hooks.clear()
        model.lm_head.register_forward_hook(say)
        model.generation_config.eos_token_id = self.tokenizer.eos_token_id
        return model


def test_a_users_message_is_answered(model: LagwiseForCausalLM) -> None:
    """By the chat template, whose names of special tokens are these tokens; those of the message are text."""
    tokenizer = load_tokenizer("bytes")
    options: dict[str, Any] = {"max_new_tokens": 8, "temperature": 0, "echo": False}
    answer = generate_text(model, tokenizer, "hello", chat=True, **{**options, "echo": True})
    assert answer == generate_text(model, tokenizer, "user: hello\nassistant:", stop=["\nuser:"], **options)
    tokenizer.chat_template = "{% for m in messages %}{{ m.content }}<|endoftext|>{% endfor %}"
    ids = torch.cat(generation.encode_chat(tokenizer, [{"role": "user", "content": "a<|endoftext|>"}])).tolist()
    assert ids.count(tokenizer.eos_token_id) == 1
    assert tokenizer.decode(ids) == "a<|endoftext|><|endoftext|>"
