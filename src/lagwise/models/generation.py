"""Text generation with streaming output."""

from __future__ import annotations

import math
import random
import re
import threading
import time
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor
from transformers import PreTrainedTokenizerBase

from lagwise.models.causal_lm import LagwiseForCausalLM
from lagwise.models.inputs import check_prompt_length
from lagwise.ops.constants import moved
from lagwise.tables import check_integer
from lagwise.text import split_text

# Used if the tokenizer has no chat template: lines of "role: text".
PLAIN_TEMPLATE = "{% for message in messages %}{{ message.role }}: {{ message.content }}\n{% endfor %}assistant:"
PLAIN_STOP = ("\nuser:",)  # a model that was not trained on conversations would continue with the user's part
MAX_NEW_TOKENS = 10**9
PREFILL = 4096  # prompt tokens processed at a time, so that memory does not grow with the prompt
_CHUNK_CHARACTERS = 1 << 16  # characters of a prompt encoded at a time: an encoding takes hundreds of bytes per token
_CONTEXT = 8  # tokens decoded before a new one, since the space between them depends on both
_MAX_CHARACTER_TOKENS = 8  # longer sequences without a whole character are invalid
_encoding = threading.Lock()  # `split_special_tokens` changes the state of a tokenizer
NO_NUMBERS = "the model's logits are not numbers; its training may have diverged"
INCOMPLETE = "\N{REPLACEMENT CHARACTER}"  # a tokenizer's output for an incomplete character


@dataclass(frozen=True)
class Sampling:
    """Options of sampling and stopping.

    Args:
        max_tokens: Maximum number of tokens to add; by default as many as a server and the model allow.
        temperature: Sampling temperature; 0 is greedy.
        top_p: Sample from the most likely tokens whose probabilities sum to at least this.
        seed: Seed for reproducible texts.
        stop: Texts before which the output ends.
        logprobs: Number of most likely tokens whose log-probabilities an answer has in addition to those of its own
            tokens; by default it has none.
    """

    max_tokens: int | None = None
    temperature: float = 1.0
    top_p: float = 1.0
    seed: int | None = None
    stop: tuple[str, ...] = ()
    logprobs: int | None = None


def generate_text(
    model: LagwiseForCausalLM,
    tokenizer: PreTrainedTokenizerBase,
    prompt: str,
    *,
    max_new_tokens: int = 500,
    temperature: float = 0.8,
    top_p: float = 0.95,
    seed: int | None = None,
    stop: Sequence[str] = (),
    special: bool = False,
    chat: bool = False,
    echo: bool = True,
    write: Callable[[str], None] | None = None,
    report: Callable[[str], None] | None = None,
) -> str:
    """Continue a prompt.

    The text ends before the first stop text, at the end of the document, or after ``max_new_tokens`` tokens. Long
    prompts are processed 4096 tokens at a time. If the model has a compiled step (`LagwiseForCausalLM.compile_step`),
    it is used for the new tokens. On KeyboardInterrupt, the rest of the text and the report are written before the
    exception is raised again.

    Args:
        model: The language model.
        tokenizer: Its tokenizer.
        prompt: Text to continue; an empty prompt starts a document.
        max_new_tokens: Maximum number of tokens to add.
        temperature: Sampling temperature; 0 is greedy.
        top_p: Sample from the most likely tokens whose probabilities sum to at least this.
        seed: Seed for reproducible texts; by default it is drawn from torch's random numbers.
        stop: Texts that end the output when they occur in the continuation.
        special: Whether the names of special tokens in the prompt, such as ``<|endoftext|>``, are read as these tokens.
        chat: Whether the prompt is a user's message, which the tokenizer's chat template makes a conversation of
            (`encode_chat`). The output is then the answer alone.
        echo: Whether the output includes the prompt.
        write: Called with each piece of the text as it is generated.
        report: Called at the end with a line of counts and speeds.

    Returns:
        The prompt, as decoded by the tokenizer, and its continuation; without ``echo`` only the continuation.

    Raises:
        ValueError: If an option is out of range, the prompt is too long for the model, or it contains a word that is
            unknown to the tokenizer.

    >>> from lagwise import LagwiseConfig, LagwiseForCausalLM
    >>> from lagwise.data import load_tokenizer
    >>> model = LagwiseForCausalLM(LagwiseConfig(hidden_size=8, num_hidden_layers=1)).eval()
    >>> text = generate_text(model, load_tokenizer("bytes"), "Once", max_new_tokens=3, seed=1)
    >>> text == generate_text(model, load_tokenizer("bytes"), "Once", max_new_tokens=3, seed=1)
    True
    """
    if check_integer("max_new_tokens", max_new_tokens) > MAX_NEW_TOKENS:
        raise ValueError(f"max_new_tokens must be at most {MAX_NEW_TOKENS}, got {max_new_tokens}")
    if not 0 <= temperature < math.inf or not 0 < top_p <= 1:
        raise ValueError(
            f"temperature must be finite and at least 0, and top_p in (0, 1]; got {temperature} and {top_p}"
        )
    if isinstance(stop, str) or not all(stop):
        raise ValueError(f"stop must be a list of non-empty texts, got {stop!r}")
    if chat:
        parts = encode_chat(tokenizer, [{"role": "user", "content": prompt}])
        stop, echo = [*stop, *(() if tokenizer.chat_template else PLAIN_STOP)], False
    else:
        parts = encode_prompt(tokenizer, prompt, special=special)
    ids = torch.cat(parts)
    check_prompt_length(model.length_limit, len(ids), max_new_tokens)
    writer = TextWriter(tokenizer, parts, stop, echo, write)
    try:
        for token in sampled(model, ids, Sampling(max_new_tokens, temperature, top_p, seed)):
            if writer.take(token):
                break
    except KeyboardInterrupt:
        writer.end(report)
        raise
    writer.end(report)
    return "".join(writer.texts)


@torch.inference_mode()
def sampled(model: LagwiseForCausalLM, ids: Tensor | Sequence[int], rule: Sampling) -> Iterator[int]:
    """Yield up to ``rule.max_tokens`` tokens that continue ids ``(length,)``, until the end of the document.
    FloatingPointError if the logits are no numbers, as those of a model whose training has diverged."""
    seed = int(torch.randint(2**62, (), device="cpu")) if rule.seed is None else rule.seed
    rules, ends, cache, logits = [(rule, random.Random(seed))], end_tokens(model), model.model.new_cache(), None
    device = model.device  # which takes as long as a layer
    for chunk in torch.as_tensor(ids, device=device)[None].split(PREFILL, dim=1):
        logits = model.next_logits(chunk, cache)
    for left in range(rule.max_tokens or MAX_NEW_TOKENS, 0, -1):
        assert logits is not None
        (token,) = draw(logits, rules)
        if token < 0:
            raise FloatingPointError(NO_NUMBERS)
        yield token
        if token in ends:
            return
        if left > 1:
            logits = model.next_logits(moved(torch.tensor([[token]], device="cpu"), device), cache)


def draw(logits: Tensor, rules: Sequence[tuple[Sampling, random.Random]]) -> list[int]:
    """Choose one token per row: the most likely one, or a sample by temperature and ``top_p``.

    Args:
        logits: ``(rows, vocab_size)``.
        rules: Options and random number generator of each row.

    Returns:
        A token of each row, -1 if its largest logit is no finite number. On a GPU these are the only values read.
    """
    tokens = logits.argmax(dim=1)
    if any(rule.temperature > 0 for rule, _ in rules):
        dtype = torch.float32 if logits.device.type == "mps" else torch.float64
        options = [(r.temperature, r.top_p, n.random() if r.temperature > 0 else 0.0) for r, n in rules]
        temperature, top_p, uniform = moved(torch.tensor(options, dtype=dtype).t()[..., None], logits.device)
        scores, order = logits.to(dtype).sort(dim=1, descending=True)
        # Subtract the largest score first: division by a temperature near 0 could overflow.
        probability = ((scores - scores[:, :1]) / temperature.where(temperature > 0, 1)).softmax(dim=1)
        before = probability.cumsum(dim=1) - probability
        total = probability.masked_fill(before >= top_p, 0).cumsum(dim=1)
        index = torch.searchsorted(total, uniform * total[:, -1:], right=True)
        # A number near 1 may be rounded up to the total.
        last = ((before < top_p).sum(dim=1, keepdim=True) - 1).clamp(min=0)  # no token qualifies if logits are NaN
        samples = order.gather(1, torch.minimum(index, last))
        tokens = torch.where(temperature > 0, samples, tokens[:, None]).squeeze(1)
    return tokens.masked_fill(~logits.amax(dim=1).isfinite(), -1).tolist()


def end_tokens(model: LagwiseForCausalLM) -> set[int]:
    """The tokens after which a document ends, from the model's generation_config."""
    ends = None if model.generation_config is None else model.generation_config.eos_token_id
    return {*(ends if isinstance(ends, list) else [ends])} - {None}


def encode_prompt(tokenizer: PreTrainedTokenizerBase, prompt: str, *, special: bool = False) -> list[Tensor]:
    """Encode a prompt in parts split at whole characters. An empty prompt gives the token that starts a document.

    Names of special tokens are text like any other, as in training: whoever wrote the prompt cannot end a document.
    With ``special`` they are these tokens.
    """
    try:
        prompt.encode()
    except UnicodeEncodeError as error:
        raise ValueError(
            f"the prompt has half of a UTF-16 pair at character {error.start} ({prompt[error.start]!a}), which is "
            "no text; remove it"
        ) from error
    parts = [torch.from_numpy(ids) for ids in encoded_chunks(tokenizer, prompt, special=special)]
    if any(map(len, parts)):
        return parts
    start = tokenizer.eos_token_id if tokenizer.bos_token_id is None else tokenizer.bos_token_id
    if start is None:
        raise ValueError("the tokenizer has no token that starts a document; provide a prompt")
    return [torch.tensor([start], device="cpu")]  # the end of text separates documents, so a document begins after it


def encoded_chunks(
    tokenizer: PreTrainedTokenizerBase, text: str | Iterable[str], *, special: bool = False
) -> Iterator[np.ndarray]:
    """Yield token ids of a text of any length, which may come in parts, a chunk at a time. special: as in
    `encode_prompt`. ValueError for a text that the tokenizer cannot encode."""
    options = {"add_special_tokens": False, "return_attention_mask": False, "split_special_tokens": not special}
    for chunk in split_text(text, _CHUNK_CHARACTERS):
        try:
            with _encoding:
                encoded: Any = tokenizer(chunk, **options)
        except Exception as error:  # tokenizers raises no narrower type
            words = ", ".join(sorted(tokenizer.get_vocab())[:20])
            raise ValueError(
                f"the text {chunk!r:.80} cannot be encoded: {error} (the tokenizer knows {words} ...)"
            ) from error
        yield np.asarray(encoded["input_ids"], dtype=np.int64)


def encode_chat(tokenizer: PreTrainedTokenizerBase, messages: Sequence[Mapping[str, str]]) -> list[Tensor]:
    """Encode a conversation, as the tokenizer's chat template or `PLAIN_TEMPLATE` writes it, in parts.

    Names of special tokens in the template are these tokens; in a message they are text like any other. ValueError if
    the template fails, or a message cannot be encoded.
    """
    special = {str(t) for t in tokenizer.added_tokens_decoder.values() if t.special}
    names = re.compile("|".join(re.escape(name) for name in sorted(special, key=len, reverse=True)) or "(?!)")
    mark, special_names = uuid.uuid4().hex, []

    def marked(name: re.Match[str]) -> str:
        special_names.append(name[0])
        return f"{mark}:{len(special_names) - 1}:"

    safe: Any = [{**message, "content": names.sub(marked, message["content"])} for message in messages]
    template: Any = tokenizer.chat_template or PLAIN_TEMPLATE
    try:
        text = tokenizer.apply_chat_template(safe, chat_template=template, tokenize=False, add_generation_prompt=True)
    except ImportError:
        raise
    except Exception as error:  # templates raise any type
        raise ValueError(f"the chat template refuses these messages: {error}") from error
    ids: list[Tensor] = []
    for number, part in enumerate(re.split(f"{mark}:([0-9]+):", str(text))):
        if number % 2:
            ids += encode_prompt(tokenizer, special_names[int(part)])
        elif part:
            ids += encode_prompt(tokenizer, part, special=True)
    return ids or encode_prompt(tokenizer, "")


class TextWriter:
    """Decodes tokens incrementally, writes the text, and detects stop texts.

    Text is held back while its last character is incomplete or while it may be the beginning of a stop text. Arguments
    as of `generate_text`; prompt: its token ids, in parts.
    """

    def __init__(
        self,
        tokenizer: PreTrainedTokenizerBase,
        prompt: Sequence[Tensor],
        stop: Sequence[str],
        echo: bool,
        write: Callable[[str], None] | None,
    ):
        self.tokenizer, self.stop, self.write = tokenizer, stop, write
        self.texts: list[str] = []
        self.prompt, self.echo = prompt, echo
        self.old: list[int] = []  # the last tokens whose text is complete
        self.new: list[int] = []  # the tokens after them
        self.pending, self.stopped, self.count = "", False, 0
        self.began = self.first = self.last = time.monotonic()

    def take(self, token: int) -> bool:
        """Add the next token. Returns whether a stop text was found."""
        self.last = time.monotonic()
        if self.count == 0:  # the whole prompt was processed
            self.first = self.last
            self._read_prompt()
        self.count += 1
        self.new.append(token)
        text = self._new_text()
        if not text.endswith(INCOMPLETE):
            self._take(text)
        elif len(self.new) > _MAX_CHARACTER_TOKENS:  # invalid bytes, of which the last may begin a character
            begun = next((n for n in (3, 2, 1) if self._decoded(self.new[-n:]) == INCOMPLETE), 0)
            self.new, rest = self.new[: len(self.new) - begun], self.new[len(self.new) - begun :]
            self._take(self._new_text())
            self.new = rest
        return self.stopped

    def end(self, report: Callable[[str], None] | None = None) -> None:
        """Write the text that was held back, and report."""
        self._take(self._new_text())
        if not self.stopped:
            self._hand_on(self.pending)
        if report is None:
            return
        prompt = f"prompt: {sum(map(len, self.prompt)):,} tokens"
        if self.count == 0:
            report(f"{prompt}, not fully processed")
            return
        speed = f", {(self.count - 1) / (self.last - self.first):,.0f} tokens/s" if self.count > 1 else ""
        report(f"{prompt} in {self.first - self.began:.2f} s; added: {self.count:,}{speed}")

    def _read_prompt(self) -> None:
        if self.echo:
            for part in self.prompt:
                self.new = part.tolist()
                self._hand_on(self._new_text())
                self.old = self.new[-_CONTEXT:]
        self.old, self.new = torch.cat(list(self.prompt))[-_CONTEXT:].tolist(), []

    def _new_text(self) -> str:
        return self._decoded(self.old + self.new)[len(self._decoded(self.old)) :] if self.new else ""

    def _take(self, text: str) -> None:
        self.old, self.new = (self.old + self.new)[-max(_CONTEXT, len(self.new)) :], []
        if self.stopped:
            return
        text = self.pending + text
        ends = [index for index in map(text.find, self.stop) if index >= 0]
        self.stopped = bool(ends)
        # Hold back text that may be the beginning of a stop text.
        begins = (i for i in range(len(text)) if any(stop.startswith(text[i:]) for stop in self.stop))
        sure = min(ends) if ends else next(begins, len(text))
        self.pending = text[sure:]
        self._hand_on(text[:sure])

    def _decoded(self, ids: list[int]) -> str:
        return str(self.tokenizer.decode(ids, skip_special_tokens=True))

    def _hand_on(self, text: str) -> None:
        if text:
            self.texts.append(text)
            if self.write is not None:
                self.write(text)
