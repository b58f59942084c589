"""Convert trained models to state spaces, and compare the exact conversion with one state per tap.

    python benchmarks/conversion.py OUT.json RUN [RUN ...]

Results for every run and tolerance: states per channel; error bound and measured error relative to the gain; bits per
byte before and after; tokens per second before, after and with n states; bytes of a stream's state; and the error of
the first layer's impulse response, streamed in float32, relative to the gain of its taps.
"""

from __future__ import annotations

import copy
import sys
import tempfile
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from lagwise.mixers import ToeplitzMixer
from lagwise.models import StreamingCache, load_model
from lagwise.models.conversion import effective_taps
from lagwise.ops import Modes
from lagwise.ops.recurrence import DiagonalSSM
from lagwise.process import keep_freed_memory
from lagwise.runs import convert_run, evaluate_run
from lagwise.runs.convert import tokens_per_second
from lagwise_papers.bench.n_state import n_state_modes
from lagwise_papers.bench.stream_peers import NStates, replace_toeplitz
from lagwise_papers.bench.streams import state_bytes
from lagwise_papers.bench.timing import save_results

TOLERANCES = (1e-2, 1e-3)
CONTEXT, N_STATES_TOKENS = 512, 2048  # tokens of the context; tokens that the n states support


def main(out: Path, runs: list[Path]) -> None:
    rows = []
    for run in runs:
        model, _ = load_model(run)
        with torch.inference_mode():
            first = next(m for m in model.modules() if isinstance(m, ToeplitzMixer))
            taps = effective_taps(first, 4096)
            n_states = replace_toeplitz(copy.deepcopy(model), lambda mixer: NStates(mixer, N_STATES_TOKENS))
            base: dict[str, Any] = {
                "run": run.name,
                "taps": taps.shape[1],
                "n_states_float32": float32_error(taps, n_state_modes(taps)),
                "state": stream_bytes(model),
                "n_states_state": stream_bytes(n_states),
            }
        for tolerance in TOLERANCES:
            with tempfile.TemporaryDirectory() as folder:
                converted = Path(folder) / "converted"
                try:
                    result = convert_run(run, tolerance, converted)
                except ValueError as refusal:
                    rows.append({**base, "tolerance": tolerance, "refused": str(refusal)})
                    print(rows[-1])
                    continue
                result["bits_per_byte"] = [compared(run, converted, length) for length in (CONTEXT, 4 * CONTEXT)]
                after, _ = load_model(converted)
            with torch.inference_mode():
                mixer = next(m for m in after.modules() if isinstance(m, ToeplitzMixer))
                rows.append(
                    {
                        **base,
                        **{key: value for key, value in result.items() if key not in ("run", "out")},
                        "float32": float32_error(taps, mixer.kernel.recurrence()),
                        "converted_state": stream_bytes(after),
                        "tokens_per_second": tokens_per_second(
                            {"before": model, "after": after, "n states": n_states}, CONTEXT
                        ),
                    }
                )
            print(rows[-1], flush=True)
    save_results(
        out, "python benchmarks/conversion.py " + " ".join([str(out), *(r.name for r in runs)]), {"rows": rows}
    )


def compared(run: Path, converted: Path, length: int) -> dict[str, float]:
    """Measure the bits per byte of test text before and after."""
    before, after = (evaluate_run(each, [length], max_tokens=65537)["test"][0] for each in (run, converted))
    return {"length": length, "before": before["bits_per_byte"], "after": after["bits_per_byte"]}


def stream_bytes(model: Any) -> int:
    """Count the bytes of a stream's state after a context."""
    cache = StreamingCache(model.config.num_hidden_layers)
    model(torch.randint(256, (1, CONTEXT)), past_key_values=cache, logits_to_keep=1)
    return state_bytes(cache)


def float32_error(taps: Tensor, modes: Modes) -> float:
    """Compute the largest error of the impulse response in float32, relative to each channel's largest gain."""
    ssm = DiagonalSSM.of(modes.to(torch.float32))
    state = ssm.start(1)
    worst = torch.zeros(len(taps))
    for lag in range(taps.shape[1]):
        x = torch.full((1, len(taps)), float(lag == 0))
        y, state = ssm.step(x, state)
        worst = torch.maximum(worst, (y[0] - taps[:, lag]).abs())
    gain = torch.fft.rfft(taps.double(), 8 * taps.shape[1]).abs().amax(1)
    return float((worst / gain).max())


if __name__ == "__main__":
    keep_freed_memory()
    main(Path(sys.argv[1]), [Path(each) for each in sys.argv[2:]])
