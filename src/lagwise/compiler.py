"""C code compiled on the machine that runs it, and loaded only from where no other user can have written."""

from __future__ import annotations

import ctypes
import hashlib
import os
import platform
import shlex
import shutil
import subprocess
import sys
import sysconfig
import tempfile
import warnings
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TypeVar

from lagwise.cache import default_cache, make_private, require_private
from lagwise.files import file_digest

T = TypeVar("T")

_TIMEOUT_SECONDS = 60
_MAX_MESSAGE_CHARACTERS = 500  # of a compiler's message


def find_compiler() -> list[str] | None:
    """Find the compiler's absolute path and its arguments, from ``$CC``, or else ``cc`` from PATH; None if there is
    none. Relative entries of PATH are skipped, because the user did not choose the contents of the current folder.
    ValueError if CC cannot be read or is a relative path; FileNotFoundError if there is no such compiler."""
    variable = os.environ.get("CC", "").strip()
    try:
        name, *arguments = shlex.split(variable or "cc")
    except ValueError as error:
        raise ValueError(f"CC={variable!r} cannot be read: {error}") from error
    if os.path.dirname(name) and not os.path.isabs(name):
        raise ValueError(f"CC must be a name on PATH or an absolute path, got {variable!r}")
    path = shutil.which(name, path=_absolute_path())
    if path is None and variable:
        raise FileNotFoundError(f"there is no compiler {name!r} (from CC={variable!r})")
    return None if path is None else [path, *arguments]


def find_cxx() -> str | None:
    """Find the C++ compiler that `torch.compile` calls on the CPU: ``$CXX``, or the system's usual one. None if there
    is none."""
    usual = {"darwin": "clang++", "win32": "cl"}.get(sys.platform, "g++")
    return shutil.which(os.environ.get("CXX") or usual)


def has_python_headers() -> bool:
    """Whether C and C++ code that calls Python can be compiled."""
    return Path(sysconfig.get_paths()["include"], "Python.h").is_file()


def load_compiled(
    sources: Sequence[Path], compiler: Sequence[str], flags: Sequence[str], bind: Callable[[ctypes.CDLL], T]
) -> T:
    """Compile C files, given with the headers that they include, to a shared library, and return ``bind`` of it. The
    library is kept in the cache, under a name made of sources, command, compiler and processor, and of the digest of
    its content, and loaded from there if that is correct and it passes `require_private`; otherwise it is compiled
    again, or with a warning for this process alone. RuntimeError if the compiler fails; OSError if its result does not
    load."""
    command = [*compiler, *flags, *(str(source) for source in sources if source.suffix in (".c", ".cpp"))]
    kept: Path | None = None
    try:
        kept, name = _cache(), _name(sources, command)
        for library in kept.glob(f"{name}-*.so"):
            if _is_own(library):
                with suppress(OSError, AttributeError):
                    return bind(ctypes.CDLL(str(library)))
            library.unlink(missing_ok=True)
        folder = tempfile.TemporaryDirectory(dir=kept)
    except (OSError, RuntimeError, ValueError) as error:
        warnings.warn(f"C code was compiled for this process alone: {error}", stacklevel=2)
        kept, name, folder = None, "", tempfile.TemporaryDirectory()
    with folder as temporary:
        result = Path(temporary, "library.so")
        _run([*command, "-o", str(result)], Path(temporary))
        digest = _digest(result)
        bound = bind(ctypes.CDLL(str(result)))
        if kept is not None:
            with suppress(OSError):  # on a full disk, the next process compiles it again
                result.chmod(0o600)
                result.replace(kept / f"{name}-{digest}.so")
    return bound


def _cache() -> Path:
    root = default_cache().resolve()
    folder = root / "native"
    make_private(folder)
    require_private(folder, root)
    return folder


def _is_own(library: Path) -> bool:
    """Whether the library is, byte for byte, what this user compiled: loading a truncated file can end the process."""
    try:
        require_private(library, library.parent)
        return library.stem.endswith(_digest(library))
    except OSError:
        return False


def _digest(library: Path) -> str:
    return file_digest(library).hex()


def _run(command: Sequence[str], folder: Path) -> None:
    """Run a compiler in a folder without files that it could use instead of its own parts and headers."""
    environment = {**os.environ, "PATH": _absolute_path(), "TMPDIR": str(folder)}
    result = subprocess.run(
        command, cwd=folder, env=environment, stdin=subprocess.DEVNULL, capture_output=True, timeout=_TIMEOUT_SECONDS
    )
    if result.returncode:
        output = (result.stderr or result.stdout).decode(errors="replace").strip()[:_MAX_MESSAGE_CHARACTERS]
        raise RuntimeError(f"{shlex.join(command)} failed with status {result.returncode}: {output}")


def _name(sources: Sequence[Path], command: Sequence[str]) -> str:
    compiler = os.stat(command[0])
    texts = [source.read_text(encoding="utf-8") for source in sources]
    determinants = [*texts, *command, f"{compiler.st_size} {compiler.st_mtime_ns}", *processor()]
    return hashlib.sha256("\n".join(determinants).encode(errors="surrogateescape")).hexdigest()[:32]


def processor() -> list[str]:
    """Describe this machine's processor and its features: code compiled for it may not run on another."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:  # only Linux has it
        return [platform.machine(), platform.processor(), platform.node()]
    return [platform.machine(), *sorted({x for x in lines if x.startswith(("flags", "Features", "model name"))})]


def _absolute_path() -> str:
    entries = os.environ.get("PATH", os.defpath).split(os.pathsep)
    return os.pathsep.join(entry for entry in entries if os.path.isabs(entry))
