"""Model folders of torchtitan's distributed checkpoints: ``python -m lagwise.titan.export CHECKPOINT FOLDER``."""

import sys
from pathlib import Path

import torch
import torch.distributed.checkpoint as dcp

from lagwise.data import load_tokenizer
from lagwise.files import saved_whole
from lagwise.models import LagwiseForCausalLM
from lagwise.models.loading import quiet, read_config

MODEL = "lagwise"  # folder of the configuration and the tokenizer, beside that of the checkpoints


def export(checkpoint: Path | str, out: Path | str) -> Path:
    """Make a model folder of a distributed checkpoint, such as ``outputs/checkpoint/step-1000``. FileExistsError if
    ``out`` is there already, and FileNotFoundError without such a checkpoint of a model of lagwise's."""
    checkpoint, out = Path(checkpoint), Path(out)
    if out.exists():
        raise FileExistsError(f"{str(out)!r} is there already; name a new folder")
    beside = checkpoint.resolve().parent.parent / MODEL
    for needed in (checkpoint / ".metadata", beside / "config.json"):
        if not needed.is_file():
            raise FileNotFoundError(f"there is no file {str(needed)!r}; name a checkpoint of a training of lagwise's")
    with torch.device("meta"):
        model = LagwiseForCausalLM(read_config(beside))
    model.to_empty(device="cpu")
    model.tie_weights()
    state = model.state_dict()
    dcp.load(state, checkpoint_id=checkpoint, no_dist=True)
    model.load_state_dict(state)
    with quiet(), saved_whole(out, "the model", last="config.json") as partial:
        model.save_pretrained(partial)
        if (beside / "tokenizer_config.json").is_file():
            load_tokenizer(str(beside)).save_pretrained(partial)
    return out


if __name__ == "__main__":
    if len(sys.argv) != 3:
        sys.exit("usage: python -m lagwise.titan.export CHECKPOINT FOLDER")
    print(export(*sys.argv[1:]))
