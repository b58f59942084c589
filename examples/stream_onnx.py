"""Stream text from a model that `lagwise export RUN` wrote, without torch.

pip install onnxruntime tokenizers numpy
python stream_onnx.py runs/best-lm-recurrent-export --prompt "def "
"""

import argparse
import json
from pathlib import Path

import numpy as np
import onnxruntime
from tokenizers import Tokenizer

parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
parser.add_argument("folder", type=Path)
parser.add_argument("--prompt", default="")
parser.add_argument("--tokens", type=int, default=500)
parser.add_argument("--temperature", type=float, default=0.8, help="0 is greedy")
options = parser.parse_args()

meta = json.loads((options.folder / "export.json").read_text())
tokenizer = Tokenizer.from_file(str(options.folder / "tokenizer.json"))
session = onnxruntime.InferenceSession(options.folder / "step.onnx", providers=["CPUExecutionProvider"])
types = {"tensor(float)": np.float32, "tensor(int64)": np.int64}
# Every state is zero before the first token; outputs come in the order of the inputs.
states = {i.name: np.zeros(i.shape, types[i.type]) for i in session.get_inputs() if i.name.startswith("past.")}


def step(token: int) -> np.ndarray:
    logits, *present = session.run(None, {"token": np.array([token]), **states})
    states.update(zip(states, present, strict=True))
    return logits[0]


for token in tokenizer.encode(options.prompt, add_special_tokens=False).ids or [meta["eos_token_id"]]:
    logits = step(token)
ids, written = [], 0
print(options.prompt, end="", flush=True)
for _ in range(options.tokens):
    noise = np.random.default_rng().gumbel(size=len(logits)) if options.temperature else 0
    token = int(np.argmax(logits / (options.temperature or 1) + noise))
    if token == meta["eos_token_id"]:
        break
    ids.append(token)
    text = tokenizer.decode(ids)
    if not text.endswith("\N{REPLACEMENT CHARACTER}"):  # otherwise the last character is incomplete
        print(text[written:], end="", flush=True)
        written = len(text)
    logits = step(token)
print()
