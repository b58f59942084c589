"""Learn a log in seconds, and see which lines of the next one are surprising."""

import subprocess
import sys
import tempfile
from pathlib import Path

import matplotlib.pyplot as plt
import torch

from lagwise import LagwiseConfig, LagwiseForCausalLM
from lagwise.data import load_tokenizer
from lagwise.runs import Watch


def log(code: str) -> list[bytes]:
    """What Python says about each module that it imports, and how long that takes."""
    command = [sys.executable, "-X", "importtime", "-c", code]
    return subprocess.run(command, capture_output=True, check=False).stderr.splitlines()


past = log("import asyncio, email.message, http.server, logging.config, unittest.mock, xml.dom.minidom")
held_out = log("import concurrent.futures, csv, html.parser, sqlite3, tarfile, wave")
new = log("import decimal, json.tool, zipfile; import no_such_module")

torch.manual_seed(0)
ids = torch.tensor([[256, *b"\n".join(past), 10]])
block = {"name": "prenorm", "token_mixer": {"name": "short_conv", "kernel_size": 4}, "channel_mixer": {"name": "glu"}}
config = LagwiseConfig(hidden_size=64, num_hidden_layers=2, ngram_sizes=[3, 5], match_sizes=[4], block=block)
model = LagwiseForCausalLM(config)
optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
for _ in range(50):
    start = int(torch.randint(ids.shape[1] - 1500, ()))
    part = ids[:, start : start + 1500]
    model(part, labels=part).loss.backward()
    optimizer.step()
    optimizer.zero_grad()

with tempfile.TemporaryDirectory() as folder:
    run, lines = Path(folder, "run"), Path(folder, "held-out.log")
    model.save_pretrained(run)
    load_tokenizer("bytes").save_pretrained(run)
    lines.write_bytes(b"\n".join(held_out))
    rows = Watch(run, alarms=0.02, calibrate=lines).surprises(new)

scores = [row["bits_per_byte"] for row in rows]
alarms = [row for row in rows if row["alarm"]]
figure, axes = plt.subplots(figsize=(8, 3), layout="constrained")
axes.vlines(range(len(scores)), 0, scores, color=["C3" if row["alarm"] else "0.6" for row in rows])
axes.axhline(rows[0]["threshold"], color="C0", linestyle="--", label="threshold for 2 % alarms")
most = max(alarms, key=lambda row: row["bits_per_byte"], default=rows[-1])
axes.annotate(
    most["text"][:60], (most["line"] - 1, most["bits_per_byte"]), (-8, 0), textcoords="offset points", ha="right"
)
axes.set(title=f"{len(alarms)} of {len(rows)} lines are surprising", xlabel="line", ylabel="bits per byte")
axes.set_ylim(0, 1.2 * max(scores))
axes.legend(frameon=False, loc="upper left")
figure.savefig("watch_log.png", dpi=110)
