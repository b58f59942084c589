"""Draw docs/figures/toeplitz-matrices.png: what the members of TNN §3.4 and fig. 3 multiply a channel by.

    python docs/matrices.py

Each panel is read off a `ToeplitzMixer`: its answers to an impulse at every token, in one channel, over the largest.
Kernels are as they begin, but for the convolution's and the decay's, which are written down.
"""

from __future__ import annotations

from pathlib import Path

import torch
from torch import Tensor

from lagwise.figures import close, pyplot
from lagwise.mixers import ToeplitzMixer

FIGURE = Path(__file__).parent / "figures" / "toeplitz-matrices.png"
LENGTH = 64


def mixers(causal: bool) -> dict[str, ToeplitzMixer]:
    """One channel each."""
    free = {"name": "free", "max_length": LENGTH, "decay": 1.0}
    network = {"hidden": 32, "layers": 3}
    by_name = {
        "CNN, 7 taps": ToeplitzMixer(1, causal=causal, kernel=free),
        "state space (S4D)": ToeplitzMixer(1, causal=causal, kernel={"name": "s4d", "modes": 8}),
        "decay as ALiBi's": ToeplitzMixer(1, causal=causal, kernel=free),
        "TNN": ToeplitzMixer(1, causal=causal, kernel={"name": "rpe", "decay": 0.95, **network}),
        "FD-TNN": ToeplitzMixer(1, causal=causal, kernel={"name": "frequency", "grid": LENGTH, **network}),
        "SKI-TNN": ToeplitzMixer(1, causal=causal, kernel={"name": "warped", "decay": 0.95}, engine="ski"),
    }
    lag = torch.arange(LENGTH) if causal else torch.arange(1 - LENGTH, LENGTH).abs()
    with torch.no_grad():
        taps = torch.randn(2 * LENGTH)[: len(lag)]
        _weight(by_name["CNN, 7 taps"]).copy_(taps * (lag < 7 if causal else lag < 4))
        _weight(by_name["decay as ALiBi's"]).copy_((-lag / 8).exp())
    return by_name


def _weight(mixer: ToeplitzMixer) -> Tensor:
    return mixer.kernel.get_parameter("weight")[0]


@torch.no_grad()
def matrix(mixer: ToeplitzMixer) -> Tensor:
    """``(length, length)``: row i is what token i is made of."""
    impulses = torch.eye(LENGTH)[..., None]
    return mixer(impulses)[..., 0].t()


def main() -> None:
    torch.manual_seed(0)
    figure, grid = pyplot().subplots(2, 6, figsize=(12, 4.4), layout="constrained")
    for row, causal in zip(grid, (True, False), strict=True):
        for axes, (name, mixer) in zip(row, mixers(causal).items(), strict=True):
            values = matrix(mixer)
            axes.imshow(values / values.abs().max(), cmap="RdBu_r", vmin=-1, vmax=1, interpolation="nearest")
            axes.set(title=name if causal else "", xticks=[], yticks=[])
        row[0].set_ylabel("causal" if causal else "two-sided")
    FIGURE.parent.mkdir(exist_ok=True)
    figure.savefig(FIGURE, dpi=100)
    close(figure)
    print(f"written: {FIGURE}")


if __name__ == "__main__":
    main()
