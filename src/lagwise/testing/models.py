"""Checks of causal language models of transformers: padding, packing, caches and batches change no logits.

Attention masks what it must not see. A recurrent state has already read it, so models with states are easily wrong
without an error where rows have padding, documents are packed, or a text is read in chunks.
"""

from __future__ import annotations

import copy
import inspect
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor
from transformers import GenerationConfig, PreTrainedModel

from lagwise.files import one_line
from lagwise.models.loading import quiet

_SHORT_TOKENS, _LONG_TOKENS = 9, 14  # lengths of the two texts
_CUT_TOKENS = 5  # before padding in the middle, in a first chunk, and in a continuation
_NEW_TOKENS = 6  # to generate
_CACHE_ARGUMENTS = ("cache", "past_key_values", "cache_params", "state")
_REFUSALS = (ValueError, TypeError, NotImplementedError)


@dataclass
class Finding:
    """The result of a check.

    Attributes:
        check: The name of the check.
        verdict: ``right``; ``WRONG``, other values without an error; ``refused``, an error that says that this is not
            supported; or ``fails``, any other error.
        error: The largest difference of logits, relative to the largest logit; None after an exception.
        message: The exception's type and message.
    """

    check: str
    verdict: str
    error: float | None = None
    message: str = ""


@dataclass
class Report:
    """The findings of `check_model`. ``str(report)`` is a table."""

    model: str
    tolerance: float
    findings: list[Finding] = field(default_factory=list)

    @property
    def failed(self) -> list[str]:
        """The names of the checks with other values, or with an error that is no refusal."""
        return [each.check for each in self.findings if each.verdict in ("WRONG", "fails")]

    @property
    def refused(self) -> list[str]:
        """The names of the checks of features that the model says it does not support."""
        return [each.check for each in self.findings if each.verdict == "refused"]

    def __str__(self) -> str:
        width = max((len(each.check) for each in self.findings), default=0)
        lines = [f"{self.model}: differences relative to the largest logit, right up to {self.tolerance:g}"]
        for each in self.findings:
            detail = each.message if each.error is None else f"{each.error:.1e}"
            lines.append(f"  {each.check:{width}}  {each.verdict:7}  {detail}"[:160])
        return "\n".join(lines)


def check_model(model: PreTrainedModel, tokenizer: Any = None, *, tolerance: float = 1e-4) -> Report:
    """Compare a causal language model with itself, where nothing may change its logits.

    Formula: every check compares logits of real tokens with those of a forward pass over the same tokens alone, as one
    row without padding or cache; its error is the largest difference relative to the largest logit. Beams are compared
    by their scores with and without a cache. Inputs are those of `generate` and of transformers' collators: masks of
    all tokens so far, position_ids that do not count padding, and for packed documents those that begin again.

    Args:
        model: In evaluation mode. Any weights will do if its logits depend on more than the last token; it is not
            changed. float32 or better tells errors from rounding.
        tokenizer: Gives the id of padding and texts to pad, and special tokens, which are left out. Without one, ids
            are any of the vocabulary.
        tolerance: Largest error that counts as right.

    Returns:
        The report, with a finding for each check, whatever exceptions the model raises.

    Raises:
        ValueError: For a model in training mode, and one that hardly depends on earlier tokens, where nothing could be
            found.

    >>> from lagwise.models import LagwiseConfig, LagwiseForCausalLM
    >>> config = LagwiseConfig(vocab_size=40, hidden_size=16, num_hidden_layers=1, initializer_range=0.5)
    >>> report = check_model(LagwiseForCausalLM(config).eval())
    >>> report.failed, report.refused
    ([], [])
    """
    if model.training:
        raise ValueError("the model is in training mode; call model.eval() first")
    report, subject = Report(type(model).__name__, tolerance), _Subject(model, tokenizer)
    checks = _CHECKS if tokenizer is None else {**_CHECKS, "texts padded by the tokenizer": _texts}
    with torch.no_grad(), _plain_generation(model, subject.pad):
        if (dependence := subject.memory()) < 10 * tolerance:
            raise ValueError(
                f"the logits hardly depend on earlier tokens (by {dependence:.1e}), so no check could find anything; "
                "take trained weights, or random ones with a larger initializer_range"
            )
        for name, check in checks.items():
            try:
                error = check(subject)
                finding = Finding(name, "right" if error <= tolerance else "WRONG", error)
            except Exception as error:
                verdict = "refused" if isinstance(error, _REFUSALS) else "fails"
                finding = Finding(name, verdict, message=f"{type(error).__name__}: {one_line(error)}")
            report.findings.append(finding)
    return report


@contextmanager
def _plain_generation(model: Any, pad: int) -> Iterator[None]:
    """Generate without an end token and without the model's own options within the context."""
    before = getattr(model, "generation_config", None)
    try:
        model.generation_config = GenerationConfig(pad_token_id=pad)
        yield
    finally:
        model.generation_config = before


class _Subject:
    """A model, two texts, and ways to read them."""

    def __init__(self, model: Any, tokenizer: Any):
        self.model, self.tokenizer = model, tokenizer
        special = {0, 1, 2} if tokenizer is None else set(tokenizer.all_special_ids)
        count = min(model.get_input_embeddings().num_embeddings, len(tokenizer or range(1000)))
        ids = torch.tensor([each for each in range(count) if each not in special])
        draw = torch.Generator().manual_seed(0)
        tokens = ids[torch.randint(len(ids), (_SHORT_TOKENS + _LONG_TOKENS,), generator=draw)].to(model.device)
        self.short, self.long = tokens[None, :_SHORT_TOKENS], tokens[None, _SHORT_TOKENS:]
        self.pad = int(ids[0]) if tokenizer is None or tokenizer.pad_token_id is None else tokenizer.pad_token_id
        self.arguments = inspect.signature(model.forward).parameters
        self.cache = next((name for name in _CACHE_ARGUMENTS if name in self.arguments), None)

    def require(self, name: str) -> None:
        if name not in self.arguments:
            raise ValueError(f"forward has no argument {name}")

    def read(self, ids: Tensor, mask: Tensor | None = None, **inputs: Any) -> Any:
        """Return the output for tokens, with a mask of all tokens so far."""
        if mask is not None:
            self.require("attention_mask")
            inputs["attention_mask"] = mask
            if "position_ids" in self.arguments:
                inputs["position_ids"] = (mask.cumsum(1) - 1).clamp(min=0)[:, -ids.shape[1] :]
        return self.model(ids, **{"use_cache": False, **inputs})

    def alone(self, ids: Tensor) -> Tensor:
        return self.read(ids).logits

    def in_chunks(self, ids: Tensor, cuts: Sequence[int], mask: Tensor | None = None) -> Tensor:
        """Compute the logits of rows that are read in chunks with a cache."""
        cache, logits = {}, []
        for start, end in pairwise([0, *cuts, ids.shape[1]]):
            seen = None if mask is None else mask[:, :end]
            output = self.read(ids[:, start:end], seen, use_cache=True, **cache)
            cache = self.cached(output)
            if output.logits.shape[1] != end - start:
                raise RuntimeError(f"logits of {output.logits.shape[1]} tokens for {end - start}")
            logits.append(output.logits)
        return torch.cat(logits, 1)

    def cached(self, output: Any) -> dict[str, Any]:
        """Return the keyword argument that continues from an output."""
        if self.cache is None or getattr(output, self.cache, None) is None:
            raise ValueError("forward takes or returns no cache")
        return {self.cache: getattr(output, self.cache)}

    def memory(self) -> float:
        """Compute how much the last logits depend on the tokens before."""
        other = torch.cat([self.long[:, : _SHORT_TOKENS - 1], self.short[:, -1:]], 1)
        return _difference(self.alone(other)[:, -1], self.alone(self.short)[:, -1])

    def padded(self, positions: list[int]) -> tuple[Tensor, Tensor]:
        """Make a batch of both texts, with the tokens of the short one at these positions, and its mask."""
        ids = torch.full_like(self.long, self.pad)
        mask = torch.zeros_like(ids)
        ids[0, positions], mask[0, positions] = self.short[0], 1
        return torch.cat([ids, self.long]), torch.cat([mask, torch.ones_like(mask)])

    def rows(self, logits: Tensor, ids: Tensor, mask: Tensor) -> float:
        """Compute the error of a batch's logits."""
        return max(
            _difference(row_logits[real], self.alone(row[real][None])[0])
            for row_logits, row, real in zip(logits, ids, mask.bool(), strict=True)
        )

    def greedy(self, ids: Tensor, mask: Tensor, **options: Any) -> float:
        """Compute the error of the logits, in float32, from which tokens are generated."""
        options |= {"max_new_tokens": _NEW_TOKENS, "do_sample": False}
        options |= {"return_dict_in_generate": True, "output_logits": True}
        output = self.model.generate(ids, attention_mask=mask, **options)
        real = torch.cat([mask, mask.new_ones(len(ids), _NEW_TOKENS)], 1).bool()
        alone = (
            self.alone(row[is_real][None])[0, -_NEW_TOKENS - 1 : -1]
            for row, is_real in zip(output.sequences, real, strict=True)
        )
        return max(map(_difference, torch.stack(output.logits, 1), alone))


def _difference(actual: Tensor, expected: Tensor) -> float:
    """Compute the largest difference relative to the largest number; infinite if a number is not finite."""
    error = float((actual - expected).abs().max() / expected.abs().max())
    return error if error == error else float("inf")


def _padding(positions: list[int]) -> Callable[[_Subject], float]:
    """Compare padded rows of one forward pass."""

    def check(subject: _Subject) -> float:
        ids, mask = subject.padded(positions)
        return subject.rows(subject.read(ids, mask).logits, ids, mask)

    return check


def _continued(positions: list[int], cuts: Sequence[int]) -> Callable[[_Subject], float]:
    """Compare padded rows that are read in chunks and continued by more tokens."""

    def check(subject: _Subject) -> float:
        ids, mask = subject.padded(positions)
        ids = torch.cat([ids, subject.long[:, :_CUT_TOKENS].expand(2, -1)], 1)
        mask = torch.cat([mask, mask.new_ones(2, _CUT_TOKENS)], 1)
        return subject.rows(subject.in_chunks(ids, cuts, mask), ids, mask)

    return check


def _chunks(cuts: Sequence[int]) -> Callable[[_Subject], float]:
    return lambda subject: _difference(subject.in_chunks(subject.long, cuts), subject.alone(subject.long))


def _packed(subject: _Subject) -> float:
    """Compare packed documents, with the inputs of `DataCollatorWithFlattening`."""
    subject.require("position_ids")
    ids, bounds = torch.cat([subject.short, subject.long], 1), [0, _SHORT_TOKENS, _SHORT_TOKENS + _LONG_TOKENS]
    sizes, like = torch.tensor([_SHORT_TOKENS, _LONG_TOKENS]), {"device": ids.device}
    inputs: dict[str, Any] = {"position_ids": torch.cat([torch.arange(int(n), **like) for n in sizes])[None]}
    optional = {"seq_idx": torch.arange(2).repeat_interleave(sizes)[None].to(ids.device, torch.int32)}
    optional |= {f"cu_seq_lens_{side}": torch.tensor(bounds, dtype=torch.int32, **like) for side in "qk"}
    optional |= {f"max_length_{side}": _LONG_TOKENS for side in "qk"}
    any_name = any(each.kind is each.VAR_KEYWORD for each in subject.arguments.values())
    inputs |= {name: value for name, value in optional.items() if any_name or name in subject.arguments}
    logits = subject.read(ids, **inputs).logits
    documents = zip(logits.split([_SHORT_TOKENS, _LONG_TOKENS], 1), (subject.short, subject.long), strict=True)
    return max(_difference(document, subject.alone(text)) for document, text in documents)


def _copied(subject: _Subject) -> float:
    """Compare a copy of a cache, continued after the original was continued with another text."""
    cache = subject.cached(subject.read(subject.long[:, :_CUT_TOKENS], use_cache=True))
    copied = copy.deepcopy(cache)
    subject.read(subject.short, use_cache=True, **cache)
    logits = subject.read(subject.long[:, _CUT_TOKENS:], use_cache=True, **copied).logits
    return _difference(logits, subject.alone(subject.long)[:, _CUT_TOKENS:])


def _batch(subject: _Subject) -> float:
    ids = torch.cat([subject.long, subject.long.flip(1), subject.long.roll(1, 1)])
    return subject.rows(subject.alone(ids), ids, torch.ones_like(ids))


def _embedded(subject: _Subject) -> float:
    subject.require("inputs_embeds")
    embedded = subject.model.get_input_embeddings()(subject.long)
    return _difference(subject.model(inputs_embeds=embedded, use_cache=False).logits, subject.alone(subject.long))


def _saved(subject: _Subject) -> float:
    kind, like = type(subject.model), subject.model
    with tempfile.TemporaryDirectory() as folder, quiet():
        like.save_pretrained(folder)
        loaded = kind.from_pretrained(folder, dtype=like.dtype).to(like.device).eval()
        return _difference(loaded(subject.long, use_cache=False).logits, subject.alone(subject.long))


def _generated(positions: list[int] | None = None, **options: Any) -> Callable[[_Subject], float]:
    """Compare greedy generation, of the short text or of both with the short one padded."""

    def check(subject: _Subject) -> float:
        short = subject.short, torch.ones_like(subject.short)
        return subject.greedy(*(short if positions is None else subject.padded(positions)), **options)

    return check


def _drafts(subject: _Subject) -> float:
    """Compare generation with drafts from a prompt that repeats itself; wrong drafts are rolled back."""
    ids = torch.cat([subject.short, subject.short], 1)
    return subject.greedy(ids, torch.ones_like(ids), prompt_lookup_num_tokens=3)


def _beams(subject: _Subject) -> float:
    options = {"num_beams": 3, "max_new_tokens": _NEW_TOKENS, "return_dict_in_generate": True, "output_scores": True}
    ids, mask = subject.padded(_BEFORE)
    scores = [
        subject.model.generate(ids, attention_mask=mask, use_cache=use_cache, **options).sequences_scores
        for use_cache in (True, False)
    ]
    return _difference(*scores)


def _texts(subject: _Subject) -> float:
    """Compare two texts as the tokenizer pads them."""
    texts = subject.tokenizer.batch_decode([subject.short[0], subject.long[0]])
    batch = subject.tokenizer(texts, padding=True, return_tensors="pt").to(subject.model.device)
    ids, mask = batch["input_ids"], batch["attention_mask"]
    return subject.rows(subject.read(ids, mask).logits, ids, mask)


_BEFORE, _AFTER = [*range(_LONG_TOKENS - _SHORT_TOKENS, _LONG_TOKENS)], [*range(_SHORT_TOKENS)]
_AROUND = [*range(_CUT_TOKENS), *range(_LONG_TOKENS - _SHORT_TOKENS + _CUT_TOKENS, _LONG_TOKENS)]
_ONE_BY_ONE = [*range(_LONG_TOKENS, _LONG_TOKENS + _CUT_TOKENS)]
_CHECKS: dict[str, Callable[[_Subject], float]] = {
    "padding on the left": _padding(_BEFORE),
    "padding on the right": _padding(_AFTER),
    "padding in the middle": _padding(_AROUND),
    "packed documents": _packed,
    "one row and a batch": _batch,
    "inputs_embeds": _embedded,
    "saved and loaded": _saved,
    "prefill in chunks": _chunks([_CUT_TOKENS, 2 * _CUT_TOKENS]),
    "token by token": _chunks(range(1, _LONG_TOKENS)),
    "a copied cache": _copied,
    "left padding, continued": _continued(_BEFORE, _ONE_BY_ONE),
    "left padding, in chunks": _continued(_BEFORE, [_CUT_TOKENS - 2, _CUT_TOKENS + 2, _LONG_TOKENS]),
    "right padding, continued": _continued(_AFTER, _ONE_BY_ONE),
    "middle padding, continued": _continued(_AROUND, _ONE_BY_ONE),
    "generation": _generated(),
    "generation, left padding": _generated(_BEFORE),
    "beams": _beams,
    "drafts and rollback": _drafts,
}
