"""Tokens per second of training and of generation, for language models of equal size by other people's code and ours.

    python papers/benchmarks/peer_speed.py --out benchmarks/results/peer-speed-cpu.json [--lengths 512,2048,8192]
        [--tokens 8192] [--size 2500000]

Peers: transformers' GPT-2, Mamba and Mamba2 (in PyTorch, as they run on a CPU), x-transformers (rotary positions, flash
attention) and mega-pytorch (`pip install x-transformers mega-pytorch`). Every model has six layers, bytes as tokens,
and the width, a multiple of 16, at which its parameters without embeddings are closest to 2.5 million. A training step
is a forward and a backward pass, in float32 on a CPU and with bfloat16 autocast on a GPU, and a step of AdamW on 8,192
tokens, or on one sequence that is longer; the models take their steps in turn, with denormal numbers as 0, as in our
trainings. Mamba's backward pass takes quadratic time on a CPU, so it has one sequence of at most 512 tokens. Generation
is greedy, of one sequence, after a prompt of the length; mega-pytorch has no state and computes the whole sequence for
each token. Before they are timed, the logits of generated tokens must be within 1e-3 of the largest of a forward pass.
"""

from __future__ import annotations

import argparse
import importlib
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from language import FAMILY, fields
from torch import Tensor, nn

from lagwise.models import LagwiseConfig, LagwiseForCausalLM
from lagwise.process import denormals_as_zero
from lagwise.progress import progress_bar
from lagwise_papers.bench.timing import Timing, save_results

LAYERS = 6
LONGEST = 1 << 18 if torch.cuda.is_available() else 1 << 14  # positions of models that have a vector for each
VOCABULARY = 257  # bytes and an end of text; also no width, by which `size` knows the layer that gives the logits
LONGEST_STEP = {"transformers Mamba": 512}  # tokens of a step on a CPU
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
OURS = ("tnn", "fd-tnn", "ski-tnn", "mega", "tcnca", "transformer-alibi")


def ours(name: str, width: int) -> nn.Module:
    return LagwiseForCausalLM(LagwiseConfig(vocab_size=VOCABULARY, **fields(FAMILY[name], width)))


def gpt2(width: int) -> nn.Module:
    from transformers import GPT2Config, GPT2LMHeadModel

    sizes = {"n_embd": width, "n_layer": LAYERS, "n_head": 4, "n_positions": LONGEST}
    return GPT2LMHeadModel(GPT2Config(vocab_size=VOCABULARY, bos_token_id=0, eos_token_id=None, **sizes))


def mamba(width: int) -> nn.Module:
    from transformers import MambaConfig, MambaForCausalLM

    sizes = {"vocab_size": VOCABULARY, "hidden_size": width, "num_hidden_layers": LAYERS}
    return MambaForCausalLM(MambaConfig(**sizes, bos_token_id=0, eos_token_id=None, pad_token_id=0))


def mamba2(width: int) -> nn.Module:
    from transformers import Mamba2Config, Mamba2ForCausalLM

    sizes = {"vocab_size": VOCABULARY, "hidden_size": width, "num_hidden_layers": LAYERS, "head_dim": 32, "n_groups": 1}
    sizes |= {"num_heads": 2 * width // 32, "bos_token_id": 0, "eos_token_id": None, "pad_token_id": 0}
    return Mamba2ForCausalLM(Mamba2Config(**sizes))


def x_transformers(width: int) -> nn.Module:
    package: Any = importlib.import_module("x_transformers")
    layers = package.Decoder(
        dim=width, depth=LAYERS, heads=4, attn_dim_head=width // 4, rotary_pos_emb=True, attn_flash=True
    )
    return package.TransformerWrapper(
        num_tokens=VOCABULARY, max_seq_len=LONGEST, use_abs_pos_emb=False, attn_layers=layers
    )


def mega_pytorch(width: int) -> nn.Module:
    from mega_pytorch import Mega

    return Mega(dim=width, num_tokens=VOCABULARY, depth=LAYERS)


MODELS: dict[str, Callable[[int], nn.Module]] = {
    **{name: lambda width, name=name: ours(name, width) for name in OURS},
    "transformers GPT-2": gpt2,
    "transformers Mamba": mamba,
    "transformers Mamba2": mamba2,
    "x-transformers": x_transformers,
    "mega-pytorch": mega_pytorch,
}


def size(model: nn.Module) -> int:
    """Count the parameters that are not part of an embedding or of the layer that gives the logits."""
    left_out = {
        id(m.weight)
        for m in model.modules()
        if isinstance(m, nn.Embedding) or (isinstance(m, nn.Linear) and m.out_features == VOCABULARY)
    }
    return sum(p.numel() for p in model.parameters() if id(p) not in left_out)


def fitted(make: Callable[[int], nn.Module], parameters: int) -> int:
    """Choose the width, a multiple of 16, whose size is closest to so many parameters."""
    with torch.device("meta"):
        return min(range(128, 1025, 16), key=lambda width: abs(size(make(width)) - parameters))


def logits(model: nn.Module, ids: Tensor) -> Tensor:
    out = model(ids, use_cache=False) if hasattr(model, "config") else model(ids)
    return out if isinstance(out, Tensor) else out.logits


def step(model: nn.Module, optimizer: torch.optim.Optimizer, ids: Tensor) -> float:
    """Measure the seconds of one training step."""
    start = time.perf_counter()
    optimizer.zero_grad()
    with torch.autocast(DEVICE, torch.bfloat16, enabled=DEVICE == "cuda"):
        outputs = logits(model, ids[:, :-1])
    F.cross_entropy(outputs.float().flatten(0, 1), ids[:, 1:].flatten()).backward()
    optimizer.step()
    if DEVICE == "cuda":
        torch.cuda.synchronize()
    return time.perf_counter() - start


class Clock:
    """A streamer for transformers' `generate`: when each token was ready."""

    def __init__(self) -> None:
        self.times: list[float] = []

    def put(self, value: Tensor) -> None:
        self.times.append(time.perf_counter())

    def end(self) -> None:
        pass


@torch.inference_mode()
def generated(model: nn.Module, prompt: Tensor, tokens: int) -> tuple[Tensor, float]:
    """Generate the sequence ``(1, prompt + tokens)``, and seconds per token after the first one."""
    if hasattr(model, "generate"):
        clock: Any = Clock()
        generate: Any = model.generate
        ids = generate(
            prompt,
            attention_mask=torch.ones_like(prompt),
            do_sample=False,
            max_new_tokens=tokens,
            min_new_tokens=tokens,
            streamer=clock,
        )
        times = clock.times[1:]  # without the prompt
        return ids, (times[-1] - times[0]) / (tokens - 1)
    ids, state, times = prompt, None, []
    for _ in range(tokens):
        if type(model).__name__ == "Mega":
            out = model(ids)
        else:
            out, state = model(ids, cache=state, return_intermediates=True)
        ids = torch.cat([ids, out[:, -1:].argmax(-1)], 1)
        times.append(time.perf_counter())
    return ids, (times[-1] - times[0]) / (tokens - 1)


@torch.inference_mode()
def check(name: str, model: nn.Module) -> None:
    """Raise ValueError if generated tokens are not the best ones of a forward pass."""
    ids, _ = generated(model, torch.randint(1, VOCABULARY, (1, 100), device=DEVICE), 20)
    scores = logits(model, ids)[:, 99:-1].float()
    generated_scores = scores.gather(2, ids[:, 100:, None])[..., 0]
    short = float((scores.amax(2) - generated_scores).max())
    if not short <= 1e-3:
        raise ValueError(f"{name} generates tokens whose logits are {short:.1e} below the largest; it is not timed")


def measure(
    models: dict[str, nn.Module], widths: dict[str, int], length: int, options: argparse.Namespace
) -> list[dict[str, Any]]:
    """Time the models in turn: seconds of a training step on ``step_tokens`` tokens, None where it would take too long,
    and of a generated token. Models whose steps take more than ``patience`` seconds take two, both timed, and
    the others one more for warm-up than ``repeats``."""
    repeats, patience, step_tokens = options.repeats, options.patience, max(options.tokens, length)
    steps: dict[str, list[float]] = {name: [] for name in models}
    tokens: dict[str, list[float]] = {name: [] for name in models}
    ids = torch.randint(1, VOCABULARY, (step_tokens // length, length + 1), device=DEVICE)
    limits = LONGEST_STEP if DEVICE == "cpu" else {}
    counts = {name: min(step_tokens, limits.get(name, step_tokens)) for name in models}
    optimizers = {name: torch.optim.AdamW(model.parameters(), lr=1e-5, fused=True) for name, model in models.items()}
    for turn in progress_bar(range(repeats + 1), desc=f"{length} tokens", show=True):
        for name, model in models.items():
            if len(steps[name]) >= 2 and steps[name][0] > patience:
                continue
            rows = ids[: counts[name] // length]
            step_seconds = step(model, optimizers[name], rows) if len(rows) else 0.0
            new_tokens = 2 if name == "mega-pytorch" else 33
            _, token = generated(model, ids[:1, :length], new_tokens)
            if turn or step_seconds > patience:  # the first warms up
                steps[name].append(step_seconds)
                tokens[name].append(token)
    sizes = {name: size(model) for name, model in models.items()}
    timed = {name: Timing.of(steps[name]) if counts[name] >= length else None for name in models}
    return [
        {"model": name, "parameters": sizes[name], "width": widths[name], "length": length}
        | {"step_tokens": counts[name], "step": timed[name], "token": Timing.of(tokens[name])}
        for name in models
    ]


@denormals_as_zero()
def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--lengths", default="512,2048,8192", help="tokens of a sequence, separated by commas")
    parser.add_argument("--tokens", type=int, default=8192, help="tokens of a training step")
    parser.add_argument("--size", type=int, default=2_500_000, help="parameters of a model, without embeddings")
    parser.add_argument("--models", default=",".join(MODELS), help="separated by commas")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--patience", type=float, default=20.0, help="seconds of a step that is taken only twice")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--out", type=Path, required=True)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    torch.manual_seed(0)
    names = options.models.split(",")
    widths = {name: fitted(MODELS[name], options.size) for name in names}
    models = {name: MODELS[name](widths[name]).to(DEVICE).eval() for name in names}
    for name, model in models.items():
        check(name, model)
    rows: list[dict[str, Any]] = []
    for length in map(int, options.lengths.split(",")):
        rows += measure(models, widths, length, options)
        save_results(options.out, " ".join(["python", *sys.argv]), {"threads": options.threads, "rows": rows})
    for row in rows:
        trained = "-" if row["step"] is None else f"{row['step_tokens'] / row['step'].median:,.0f}"
        print(f"{row['model']}, {row['length']}: {trained} trained, {1 / row['token'].median:,.1f} generated tokens/s")


if __name__ == "__main__":
    main()
