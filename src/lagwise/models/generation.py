"""Text generation with streaming output."""

from __future__ import annotations

import math
import re
import threading
import time
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor
from transformers import LogitsProcessorList, PreTrainedTokenizerBase, TemperatureLogitsWarper, TopPLogitsWarper

from lagwise.models.causal_lm import LagwiseForCausalLM
from lagwise.models.inputs import check_prompt_length
from lagwise.tables import check_integer
from lagwise.text import split_text

# Used if the tokenizer has no chat template: lines of "role: text".
PLAIN_TEMPLATE = "{% for message in messages %}{{ message.role }}: {{ message.content }}\n{% endfor %}assistant:"
PLAIN_STOP = ("\nuser:",)  # a model that was not trained on conversations would continue with the user's part
MAX_NEW_TOKENS = 10**9
PREFILL = 4096  # prompt tokens processed at a time, so that memory does not grow with the prompt
_MIN_TEMPERATURE = 1e-6  # logits divided by less could overflow
_CHUNK_CHARACTERS = 1 << 16  # characters of a prompt encoded at a time: an encoding takes hundreds of bytes per token
_CONTEXT = 8  # tokens decoded before a new one, since the space between them depends on both
_MAX_CHARACTER_TOKENS = 8  # longer sequences without a whole character are invalid
_encoding = threading.Lock()  # `split_special_tokens` changes the state of a tokenizer
INCOMPLETE = "\N{REPLACEMENT CHARACTER}"  # a tokenizer's output for an incomplete character


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
        seed: Seed of torch's random numbers.
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
    if seed is not None:
        torch.manual_seed(seed)
    if chat:
        parts = encode_chat(tokenizer, [{"role": "user", "content": prompt}])
        stop, echo = [*stop, *(() if tokenizer.chat_template else PLAIN_STOP)], False
    else:
        parts = encode_prompt(tokenizer, prompt, special=special)
    ids = torch.cat(parts)[None]
    check_prompt_length(model.length_limit, ids.shape[1], max_new_tokens)
    writer = TextWriter(tokenizer, parts, stop, echo, write)
    try:
        for token in sampled(model, ids, max_new_tokens, temperature, top_p):
            if writer.take(token):
                break
    except KeyboardInterrupt:
        writer.end(report)
        raise
    writer.end(report)
    return "".join(writer.texts)


@torch.inference_mode()
def sampled(
    model: LagwiseForCausalLM, ids: Any, count: int, temperature: float = 1.0, top_p: float = 1.0
) -> Iterator[int]:
    """Yield up to ``count`` tokens that continue ``ids`` (1, length), until the end of the document. A temperature
    below a millionth is greedy.

    With the same seed they equal those of transformers' ``generate`` with ``do_sample=True, top_k=0``, at a lower
    overhead per token. FloatingPointError if the logits are NaN, as those of a model whose training has diverged.
    """
    if temperature < _MIN_TEMPERATURE:
        temperature = 0
    choose = LogitsProcessorList()
    if temperature not in (0, 1):
        choose.append(TemperatureLogitsWarper(float(temperature)))
    if temperature > 0 and top_p < 1:
        choose.append(TopPLogitsWarper(float(top_p)))
    ends, cache, logits, ids = end_tokens(model), model.model.new_cache(), None, ids.to(model.device)
    for chunk in ids.split(PREFILL, dim=1):
        logits = model.next_logits(chunk, cache)
    for number in range(count):
        assert logits is not None
        if temperature > 0:
            # samples as torch.multinomial does, without the two values that it reads for its checks
            likely = choose(ids, logits.float()).softmax(-1)
            token = (likely / torch.empty_like(likely).exponential_()).argmax(-1, keepdim=True)
        else:
            token = logits.argmax(-1, keepdim=True)
        lost = ~logits.amax(-1, keepdim=True).isfinite()
        chosen = int(token.masked_fill(lost, -1))  # a single host sync per token
        if chosen < 0:
            raise FloatingPointError("the model's logits are not numbers; its training may have diverged")
        yield chosen
        if chosen in ends:
            return
        if number + 1 < count:
            logits = model.next_logits(token, cache)


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
