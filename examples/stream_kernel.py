"""Apply a long kernel to a stream, sample by sample, exactly as to the whole signal."""

import matplotlib.pyplot as plt
import torch

from lagwise.mixers import ToeplitzMixer

torch.manual_seed(0)
mixer = ToeplitzMixer(1, kernel={"name": "rpe", "decay": 0.98}).double()
x = torch.zeros(1, 400, 1, dtype=torch.float64)
x[:, [20, 150, 160, 300]] = 1.0  # four impulses

with torch.no_grad():
    whole = mixer(x)
    state, steps = mixer.init_state(1), []
    for t in range(x.shape[1]):
        y, state = mixer.step(x[:, t], state)
        steps.append(y)
streamed = torch.stack(steps, 1)

figure, (top, bottom) = plt.subplots(2, 1, figsize=(8, 3.6), sharex=True, layout="constrained")
top.plot(whole[0, :, 0], linewidth=3, alpha=0.4, label="whole signal at once")
top.plot(streamed[0, :, 0], linewidth=1, label="one sample at a time")
top.vlines(x[0, :, 0].nonzero()[:, 0], *top.get_ylim(), color="0.7", linestyle=":", label="impulses")
top.legend(frameon=False, fontsize=8)
bottom.semilogy((whole - streamed)[0, :, 0].abs().clamp(min=1e-18))
bottom.set(xlabel="sample", ylabel="difference")
figure.savefig("stream_kernel.png", dpi=110)
