"""Random models: generation with and without a cache, padded and alone, and sessions whose rows come and go.

A failure shows its seed: ``LAGWISE_FUZZ_SEED=seed pytest tests/fuzz/test_models_fuzz.py`` runs it alone.
"""

from __future__ import annotations

import random
from typing import Any

import campaign
import pytest
import torch
from options import STREAMING_MIXERS, Options, mixer_options
from torch import Tensor, nn

from lagwise.blocks import LINKS
from lagwise.models import LagwiseConfig, LagwiseForCausalLM, StreamingSession
from lagwise.ops.attention import ATTENTION_FUNCTIONS

QUICK = 10
VOCABULARY = 11
LONGEST = 70  # tokens of a text in the end
PAD, END = 1, 2

pytestmark = pytest.mark.filterwarnings("ignore:no SKI plan meets")


@pytest.mark.sampled(2)
@pytest.mark.parametrize("seed", campaign.seeds(QUICK))
def test_model(seed: int) -> None:
    check(seed)


@pytest.mark.timeout(0)
@pytest.mark.skipif(not campaign.SECONDS, reason="set LAGWISE_FUZZ_SECONDS (make fuzz-models)")
def test_models_at_length() -> None:
    campaign.run(check, QUICK, share=0.25)


def check(seed: int) -> None:
    rng = random.Random(seed)
    torch.manual_seed(seed)
    fields = draw(rng)
    try:
        model = build(fields)
        check_generation(rng, model)
        check_session(rng, model)
    except Exception as error:
        raise AssertionError(f"{error}\nseed {seed}: {fields}") from error


def draw(rng: random.Random) -> Options:
    """Random fields of a configuration."""
    channels = rng.choice((4, 6, 8))
    if rng.random() < 0.25:
        block = {"name": "chain", "blocks": [link(rng, channels) for _ in range(rng.randint(1, 3))]}
    else:
        block = link(rng, channels)
    learned = rng.random() < 0.2
    return {
        "hidden_size": channels,
        "num_hidden_layers": rng.randint(1, 2),
        "block": block,
        "norm": rng.choice(("rms", "layer")),
        "position_embedding": "learned" if learned else "none",
        "max_position_embeddings": LONGEST + 40 if learned else None,
        "ngram_sizes": rng.choice(([], [], rng.sample(range(2, 7), rng.randint(1, 3)))),
        "ngram_buckets": rng.randint(1, 40),
        "match_sizes": rng.choice(([], rng.sample(range(2, 5), rng.randint(1, 2)))),
    }


def link(rng: random.Random, channels: int) -> Options:
    name = rng.choice(list(LINKS))
    mixer = rng.choice(STREAMING_MIXERS)
    spec = {"name": mixer, **mixer_options(rng, mixer, channels, causal=True, length=2 * LONGEST)}
    options = {"name": name, "channel_mixer": rng.choice(({"name": "glu"}, {"name": "mlp"}, {"name": "none"}))}
    norm = rng.choice(("rms", "layer", "scale"))
    if name == "prenorm":
        return {**options, "norm": norm, "token_mixer": spec}
    heads = rng.choice((1, 2)) if name == "megalodon" else 1
    options |= {
        "memory": spec,
        "query_size": 2 * heads * rng.randint(1, 3),
        "value_size": heads * rng.randint(1, 9),
        "chunk": rng.randint(1, 30),
        "evaluation_chunk": rng.choice((None, rng.randint(1, 30))),
    }
    if name == "megalodon":
        position = rng.choice(("none", "rope"))
        options |= {"sliding": rng.random() < 0.5}
        return {**options, "heads": heads, "groups": rng.choice((1, 2)), "position": position}
    return {
        **options,
        "norm": norm,
        "function": rng.choice(ATTENTION_FUNCTIONS),
        "position": rng.choice(("none", "rope", "simple", "rotary")),
        "activation": rng.choice(("silu", "gelu", "relu")),
    }


def build(fields: Options) -> LagwiseForCausalLM:
    """A model in double precision, so that rounding does not decide between tokens, with large weights for varied
    outputs."""
    model = LagwiseForCausalLM(LagwiseConfig(vocab_size=VOCABULARY, pad_token_id=PAD, **fields)).double().eval()
    with torch.no_grad():
        for module in model.modules():
            if type(module) in (nn.Linear, nn.Embedding):
                module.weight.normal_()
    return model


def prompt(rng: random.Random, most: int = 40) -> Tensor:
    return torch.randint(0, VOCABULARY, (int(most ** rng.random()),))


@torch.no_grad()
def check_generation(rng: random.Random, model: LagwiseForCausalLM) -> None:
    """A padded batch, also with beams, generates what each row generates alone with recomputation."""
    prompts = [prompt(rng) for _ in range(rng.randint(1, 3))]
    longest = max(map(len, prompts)) + rng.choice((0, 0, rng.randint(0, 20)))
    mask = torch.stack([torch.arange(longest) >= longest - len(p) for p in prompts])
    ids = torch.randint(0, VOCABULARY, mask.shape).masked_scatter(mask, torch.cat(prompts))
    options: dict[str, Any] = {"do_sample": False, "pad_token_id": PAD, "eos_token_id": rng.choice((None, END))}
    options |= {"max_new_tokens": rng.randint(1, 12), "num_beams": rng.choice((1, 1, 3))}
    together = model.generate(ids, attention_mask=mask.long(), **options)
    again = {"use_cache": False}, {"prefill_chunk_size": rng.randint(1, longest)}
    for extra in again:
        assert torch.equal(model.generate(ids, attention_mask=mask.long(), **options, **extra), together), extra
    for row, each in enumerate(prompts):
        alone = model.generate(each[None], attention_mask=torch.ones(1, len(each)), **options)[0, len(each) :]
        said = together[row, longest:]
        assert torch.equal(said[: len(alone)], alone), f"row {row}: {said.tolist()} is not {alone.tolist()}"
        assert (said[len(alone) :] == PAD).all(), f"row {row}: {said.tolist()} is not {alone.tolist()} and padding"


def check_session(rng: random.Random, model: LagwiseForCausalLM) -> None:
    """Sequences that come and go get the same logits as alone."""
    session = StreamingSession(model, prefill_chunk=rng.randint(1, 50))
    texts: dict[int, Tensor] = {}
    for _ in range(rng.randint(3, 9)):
        if not texts or rng.random() < 0.5:
            text = prompt(rng)
            texts[session.add(text)] = text
        gone = [handle for handle, text in texts.items() if len(text) > LONGEST or rng.random() < 0.1]
        session.drop(*gone)
        texts = {handle: text for handle, text in texts.items() if handle not in gone}
        for _ in range(rng.choice((0, 1, rng.randint(1, 8)))):
            chosen = {handle: rng.randrange(VOCABULARY) for handle in texts}
            session.step(chosen)
            texts = {handle: torch.cat([text, torch.tensor([chosen[handle]])]) for handle, text in texts.items()}
        for handle, logits in zip(session.handles, session.logits, strict=True):
            with torch.no_grad():
                alone = model(texts[handle][None], use_cache=False).logits[0, -1]
            torch.testing.assert_close(logits, alone, rtol=1e-8, atol=1e-8)
