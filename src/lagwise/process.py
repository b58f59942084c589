"""Memory and arithmetic of the process, and settings for programs only, which must precede the import of torch."""

from __future__ import annotations

import ctypes
import gc
import hashlib
import math
import os
import platform
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import timedelta
from pathlib import Path

_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3
_MMAP_BYTES = 2**30  # larger blocks are still mapped
_SPIN_COUNT = 5000  # rounds that GNU's OpenMP threads wait before they sleep
_GROUP_NAMES = ("RANK", "LOCAL_RANK", "GROUP_RANK", "ROLE_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "ROLE_WORLD_SIZE")


def keep_freed_memory() -> bool:
    """Ask glibc not to return large blocks to the system between uses, which costs time at every step; return whether
    it agreed. A setting of the whole process, for programs only. ``LAGWISE_KEEP_MEMORY=0`` disables it."""
    if os.environ.get("LAGWISE_KEEP_MEMORY") == "0":
        return False
    if platform.libc_ver()[0] != "glibc":
        return False
    libc = ctypes.CDLL(None)
    return bool(libc.mallopt(_M_MMAP_THRESHOLD, _MMAP_BYTES)) and bool(libc.mallopt(_M_TRIM_THRESHOLD, 2**31 - 1))


def share_cores() -> None:
    """Let OpenMP threads that wait for each other sleep early, if GNU's runtime reads the setting.

    By default they spin for about a millisecond at every barrier. Two trainings on the same cores then wait for each
    other's spinning, at a hundredth of their speed. Alone, the shorter spin has no measurable cost (docs/log.md).
    ``GOMP_SPINCOUNT`` and ``OMP_WAIT_POLICY`` of the environment are respected.
    """
    if "OMP_WAIT_POLICY" not in os.environ:
        os.environ.setdefault("GOMP_SPINCOUNT", str(_SPIN_COUNT))


def is_first() -> bool:
    """Whether this process is the first, or the only one, of those that a launcher such as torchrun has started."""
    return os.environ.get("RANK", "0") == "0"


def group_size() -> int:
    """Return the number of processes that a launcher such as torchrun has started together."""
    return int(os.environ.get("WORLD_SIZE", "1"))


def leave_group() -> None:
    """Let this process work as if it had been started alone."""
    for name in [name for name in os.environ if name in _GROUP_NAMES or name.startswith("TORCHELASTIC_")]:
        del os.environ[name]


def is_first_to_say(text: str) -> bool:
    """Whether this process is the first of its group to ask with this text. Processes of torchrun ask a store that it
    keeps for them; in other groups every process is the first."""
    if group_size() == 1 or os.environ.get("TORCHELASTIC_USE_AGENT_STORE") != "True":
        return True
    from torch.distributed import TCPStore

    start = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")
    key = f"lagwise/{start}/{hashlib.sha256(text.encode()).hexdigest()}"
    try:
        host, port = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
        store = TCPStore(host, port, is_master=False, timeout=timedelta(seconds=5), wait_for_workers=False)
        return store.add(key, 1) == 1
    except Exception:  # torchrun has ended
        return True


class Stopped(KeyboardInterrupt):
    """A training that ended at a signal, after it saved a checkpoint."""

    def __init__(self, number: int):
        super().__init__()
        self.number = number


@contextmanager
def quick_imports() -> Iterator[None]:
    """Disable garbage collection within the context, and exempt what was imported from later collections.

    Collections take a third of the time until a model of transformers has been loaded. For programs only, at their
    start."""
    if "transformers" in sys.modules:  # imported already: what exists may be garbage
        yield
        return
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        gc.enable()


@contextmanager
def denormals_as_zero() -> Iterator[None]:
    """Flush denormal numbers, below 1.2e-38 in float32, to 0 within the context: processors compute with them many
    times as slowly, and trainings have them."""
    import torch

    changed = torch.set_flush_denormal(True)
    try:
        yield
    finally:
        if changed:
            torch.set_flush_denormal(False)


def memory() -> float:
    """Return the memory of the machine, or of its container if that has less, in bytes; infinity if it is unknown."""
    limits = []
    with suppress(OSError, ValueError, AttributeError):
        limits.append(os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"))
    for file in ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes"):
        with suppress(OSError, ValueError):
            limits.append(int(Path(file).read_text(encoding="utf-8")))
    return min(limits, default=math.inf)
