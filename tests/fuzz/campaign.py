"""How long the fuzz goes on, and with which seeds.

LAGWISE_FUZZ_SECONDS: go on with further seeds for that long, whatever fails, and report then (`make fuzz-models`).
LAGWISE_FUZZ_SEED: run the case of this seed alone; with LAGWISE_FUZZ_SECONDS, begin there.
"""

from __future__ import annotations

import os
import time
import traceback
from collections.abc import Callable, Iterable

SECONDS = float(os.environ.get("LAGWISE_FUZZ_SECONDS", 0))


def seeds(quick: int) -> Iterable[int]:
    """The seeds of the normal suite, or the requested one."""
    seed = os.environ.get("LAGWISE_FUZZ_SEED")
    return range(quick) if seed is None or SECONDS else [int(seed)]


def run(check: Callable[[int], None], first: int, share: float) -> None:
    """Check one seed after the other for this share of the time, then report."""
    seed = start = int(os.environ.get("LAGWISE_FUZZ_SEED", first))
    failures: dict[int, str] = {}
    end = time.monotonic() + share * SECONDS
    while time.monotonic() < end:
        try:
            check(seed)
        except Exception:
            failures[seed] = traceback.format_exc()
            print(f"\n{failures[seed]}", flush=True)
        seed += 1
    print(f"\n{seed - start} cases, seeds {start} to {seed - 1}: {len(failures)} failed {list(failures)}", flush=True)
    assert not failures, f"seeds {list(failures)}"
