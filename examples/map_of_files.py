"""Map the files of Python's standard library, each read whole and kept as one vector."""

import sysconfig
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
import torch

from lagwise import LagwiseConfig, LagwiseForCausalLM, embed
from lagwise.data import load_tokenizer

PACKAGES = ["asyncio", "ctypes", "email", "importlib", "json", "multiprocessing", "unittest", "wsgiref"]

library = Path(sysconfig.get_path("stdlib"))
files = [
    file for name in PACKAGES for file in sorted((library / name).glob("*.py")) if 1_000 < file.stat().st_size < 20_000
]
texts, packages = [file.read_text() for file in files], np.array([file.parent.name for file in files])

torch.manual_seed(0)
tokenizer = load_tokenizer("bytes")
ids = torch.tensor(tokenizer("\n".join(texts[::2]))["input_ids"])  # half of the files
block = {"name": "prenorm", "token_mixer": {"name": "short_conv", "kernel_size": 4}, "channel_mixer": {"name": "glu"}}
model = LagwiseForCausalLM(LagwiseConfig(hidden_size=64, num_hidden_layers=2, ngram_sizes=[2, 3], block=block))
optimizer = torch.optim.AdamW(model.parameters(), lr=4e-3)
for _ in range(25):
    starts = torch.randint(len(ids) - 512, (4,))
    part = torch.stack([ids[start : start + 512] for start in starts])
    model(part, labels=part).loss.backward()
    optimizer.step()
    optimizer.zero_grad()

vectors = embed(model.eval(), tokenizer, texts).numpy()
variances, axes = np.linalg.eigh(np.cov(vectors.T))
white = (vectors - vectors.mean(0)) @ axes / np.sqrt(variances + 1e-5)
white /= np.linalg.norm(white, axis=1, keepdims=True)
cosines = white @ white.T
nearest = (cosines - 2 * np.eye(len(white))).argmax(1)
same = np.mean(packages[nearest] == packages)
guess = np.mean([np.mean(packages == each) for each in packages])

figure, axis = plt.subplots(figsize=(6, 5), layout="constrained")
shown = axis.imshow(cosines, vmin=-0.3, vmax=0.6, cmap="magma", interpolation="nearest")
starts = np.searchsorted(packages, PACKAGES)
axis.set_yticks((starts + np.append(starts[1:], len(files))) / 2, PACKAGES)
axis.set_xticks(starts[1:] - 0.5, [])
axis.set_title(f"nearest file of the same package: {same:.0%} (a guess: {guess:.0%})", fontsize=10)
figure.colorbar(shown, label="cosine of two files")
figure.savefig("map_of_files.png", dpi=110)
