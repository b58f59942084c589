"""Whether a run may begin in a folder. Loads no PyTorch."""

from __future__ import annotations

from pathlib import Path

from lagwise.files import RUN_FILE, check_writable, is_unused

TOKENIZER = "tokenizer"


def check_unused(out: Path) -> None:
    """FileExistsError if a run's folder is in use, and ValueError if it cannot be made."""
    check_writable(out, "out")
    # A process that dies before writing the recipe leaves only these.
    if not is_unused(out, RUN_FILE, TOKENIZER):
        if (out / "config.json").is_file():
            raise FileExistsError(
                f"{str(out)!r} holds a finished run: choose another `out`; to go on from its weights, add "
                f"`init_from={out}`"
            )
        raise FileExistsError(
            f"{str(out)!r} is not empty: resume it with `resume`, or choose another `out`; `resume` auto begins or "
            "resumes a run, as needed"
        )
