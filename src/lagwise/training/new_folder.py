"""Whether a run may begin in a folder. Loads no PyTorch."""

from __future__ import annotations

import os
from pathlib import Path

from lagwise.files import is_unused

RUN_FILE = "run.json"
TOKENIZER = "tokenizer"


def check_unused(out: Path) -> None:
    """FileExistsError if a run's folder is in use, and ValueError if it cannot be made."""
    above = next(folder for folder in (out, *out.absolute().parents) if folder.exists())
    if not above.is_dir() or not os.access(above, os.W_OK):
        raise ValueError(f"`out` cannot be {str(out)!r}: {str(above)!r} is not a folder that can be written to")
    # A process that dies before writing the recipe leaves only these.
    if not is_unused(out, RUN_FILE, TOKENIZER):
        if (out / "config.json").is_file():
            raise FileExistsError(
                f"{str(out)!r} holds a finished run: choose another `out`; to go on from its weights, add "
                f"model.init_from={out}"
            )
        raise FileExistsError(
            f"{str(out)!r} is not empty: resume it with `resume`, or choose another `out`; `resume` auto begins or "
            "resumes a run, as needed"
        )
