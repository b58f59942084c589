"""Foresee a neuron's spikes, in C code without allocation for a microcontroller."""

import subprocess
import tempfile
from pathlib import Path

import matplotlib.cbook as cbook
import matplotlib.pyplot as plt
import numpy as np
import torch

from lagwise import LagwiseConfig, LagwiseForTokenClassification
from lagwise.compiler import find_compiler
from lagwise.runs import export_run

AHEAD = 25  # samples

volts = np.fromfile(cbook.get_sample_data("membrane.dat", asfileobj=False), np.float32)
spikes = np.flatnonzero((volts[1:] > -0.25) & (volts[:-1] <= -0.25))
soon = np.zeros(len(volts), dtype=int)  # 1 where a spike begins within AHEAD samples
for spike in spikes:
    soon[spike - AHEAD : spike] = 1
x, y = torch.from_numpy(volts)[:, None], torch.from_numpy(soon)
training = slice(1_000, 5_000)

torch.manual_seed(0)
mixers = [{"name": "tcn", "kernel_size": 5, "dilation": 2, "depth": 4}, {"name": "ema", "dimension": 4}]
blocks = [{"name": "prenorm", "norm": "layer", "token_mixer": mixer} for mixer in mixers]
inputs = {"name": "values", "features": 1, "mean": [float(x.mean())], "std": [float(x.std())]}
config = LagwiseConfig(
    hidden_size=16, num_hidden_layers=1, block={"name": "chain", "blocks": blocks}, inputs=inputs, num_labels=2
)
model = LagwiseForTokenClassification(config)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
for _ in range(40):
    loss = model(input_values=x[None, training], labels=y[None, training]).loss
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()

with tempfile.TemporaryDirectory() as folder:
    run, code = Path(folder, "neuron"), Path(folder, "code")
    model.eval().save_pretrained(run)
    figures = export_run(run, code, format="c", progress=False)
    compiler = find_compiler() or ["cc"]
    subprocess.run([*compiler, "-std=c99", "-Os", "step.c", "main.c", "-lm", "-o", "check"], cwd=code, check=True)
    raw = subprocess.run([code / "check", "-"], input=volts.tobytes(), capture_output=True, check=True).stdout
streamed = np.frombuffer(raw, np.float32).reshape(-1, 2)[:, 1]
with torch.no_grad():
    whole = model(input_values=x[None]).logits[0].softmax(-1)[:, 1].numpy()

warned = np.flatnonzero((streamed[1:] > 0.5) & (streamed[:-1] <= 0.5))
warned, late = warned[warned > training.stop], spikes[spikes > training.stop]
seen = np.mean([streamed[spike - AHEAD : spike].max() > 0.5 for spike in late])
right = np.mean([((late > start) & (late <= start + 2 * AHEAD)).any() for start in warned])
print(f"{figures['flash_bytes']:,} bytes of flash, {figures['multiplications']:,} multiplications a sample")
shown = slice(6_200, 8_200)
figure, (top, bottom) = plt.subplots(2, 1, figsize=(8, 3.6), sharex=True, layout="constrained")
time = np.arange(len(volts))[shown]
top.plot(time, volts[shown], linewidth=1)
top.set(title=f"{seen:.0%} of the later spikes are foreseen; {right:.0%} of the warnings come true", ylabel="membrane")
bottom.fill_between(
    time, streamed[shown], color="C1", alpha=0.4, label=f"P(spike within {AHEAD} samples), by the C code"
)
bottom.plot(time, whole[shown], color="C3", linewidth=0.7, label="the model, whole recording at once")
bottom.set(xlabel=f"sample; largest difference {abs(streamed - whole).max():.0e}", ylim=(0, 1.35))
bottom.legend(frameon=False, fontsize=8, loc="upper left", ncols=2)
figure.savefig("neuron_on_a_chip.png", dpi=110)
