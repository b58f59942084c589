"""What macOS and Windows lack: POSIX's modules and calls, /proc, owners of files, UTF-8 as the default."""

from __future__ import annotations

import ast
import functools
import io
import os
import platform
import signal
import stat
import sys
from pathlib import Path
from typing import Any

import pytest
from test_architecture import trees

from lagwise import compiler, process
from lagwise.cache import default_cache, require_private
from lagwise.cli import terminal
from lagwise.ops.native import library
from lagwise.training import machine

POSIX_MODULES = {"fcntl", "grp", "posix", "pty", "pwd", "resource", "syslog", "termios", "tty"}
#: names of os that Windows lacks, with the only places that may use them, behind a check
POSIX_CALLS = {"geteuid": {"cache.py"}, "sysconf": {"process.py"}} | {
    name: set[str]()
    for name in ("chown", "fork", "getloadavg", "getuid", "killpg", "mkfifo", "sched_getaffinity", "uname", "waitpid")
}
SIGNALS = {"SIGINT", "SIGTERM"}  # that Windows has too


@functools.cache
def nodes() -> list[tuple[Path, ast.AST]]:
    return [(path, node) for path, tree in trees().items() for node in ast.walk(tree)]


def test_no_module_of_posix_is_imported() -> None:
    for path, node in nodes():
        if isinstance(node, ast.Import | ast.ImportFrom):
            names = {alias.name.partition(".")[0] for alias in node.names} if isinstance(node, ast.Import) else set()
            names |= {str(node.module).partition(".")[0]} if isinstance(node, ast.ImportFrom) else set()
            assert not names & POSIX_MODULES, f"{path}:{node.lineno}"


def test_calls_and_signals_that_windows_lacks_are_behind_a_check() -> None:
    for path, node in nodes():
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
            where = f"{path}:{node.lineno}"
            if node.value.id == "os":
                assert path.name in POSIX_CALLS.get(node.attr, {path.name}), where
            if node.value.id == "signal" and node.attr.startswith("SIG") and not node.attr.startswith("SIG_"):
                assert node.attr in SIGNALS, where
    assert {name for name in SIGNALS if hasattr(signal, name)} == SIGNALS


def test_every_text_file_is_opened_as_utf8() -> None:
    """The default encoding of Windows is that of the country until Python 3.15."""
    for path, node in nodes():
        if not isinstance(node, ast.Call):
            continue
        name = node.func.id if isinstance(node.func, ast.Name) else getattr(node.func, "attr", "")
        if name == "open" and isinstance(node.func, ast.Name):
            mode = ast.unparse(node.args[1]) if len(node.args) > 1 else "'r'"
            if "b" in mode:
                continue
        elif name not in ("read_text", "write_text") or isinstance(node.func, ast.Name):
            continue  # methods of paths
        assert "encoding" in {each.arg for each in node.keywords}, f"{path}:{node.lineno}"


@pytest.fixture
def no_proc(monkeypatch: pytest.MonkeyPatch) -> None:
    """A system without /proc."""
    read, opened = Path.read_text, open

    def absent(path: Any) -> None:
        if str(path).startswith("/proc"):
            raise FileNotFoundError(path)

    monkeypatch.setattr(Path, "read_text", lambda path, *args, **options: absent(path) or read(path, *args, **options))
    monkeypatch.setattr("builtins.open", lambda path, *args, **options: absent(path) or opened(path, *args, **options))


@pytest.mark.usefixtures("no_proc")
def test_the_processor_is_named_without_proc(monkeypatch: pytest.MonkeyPatch) -> None:
    """Compiled code is then kept for one machine, since what its processor can do is unknown."""
    monkeypatch.setattr(platform, "processor", lambda: "arm")
    assert machine._processor() == "arm"
    monkeypatch.setattr(platform, "node", lambda: "one")
    one = compiler.processor()
    monkeypatch.setattr(platform, "node", lambda: "two")
    assert "arm" in one
    assert compiler.processor() != one


def test_files_have_no_owner_on_windows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "file"
    file.write_text("")
    file.chmod(0o666)
    monkeypatch.delattr(os, "geteuid")
    require_private(file, tmp_path)
    assert stat.S_IMODE(file.stat().st_mode) == 0o666
    (tmp_path / "link").symlink_to(file)
    with pytest.raises(PermissionError, match="symbolic link"):
        require_private(tmp_path / "link", tmp_path)
    monkeypatch.setenv("LAGWISE_CACHE", str(tmp_path / "cache"))
    assert default_cache().is_dir()


@pytest.mark.parametrize("system", ["Darwin", "Windows"])
def test_the_loops_in_c_are_for_linux(system: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def compile_nothing() -> None:
        raise AssertionError("no compiler is looked for")

    monkeypatch.setattr(platform, "system", lambda: system)
    monkeypatch.setattr(library, "find_compiler", compile_nothing)
    assert library._loops.__wrapped__() is None


def test_memory_without_glibc_and_sysconf(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(platform, "libc_ver", lambda: ("", ""))
    assert not process.keep_freed_memory()
    monkeypatch.delattr(os, "sysconf")
    assert process.memory() > 0


def test_pipes_are_utf8_on_windows(monkeypatch: pytest.MonkeyPatch) -> None:
    stream = io.TextIOWrapper(io.BytesIO(), encoding="cp1252")
    monkeypatch.setattr(sys, "stdout", stream)
    terminal.use_utf8()
    assert stream.encoding == "cp1252"
    monkeypatch.setattr(sys, "platform", "win32")
    terminal.use_utf8()
    terminal.write("→ λ")
    assert stream.buffer.getvalue().decode() == "→ λ"  # type: ignore[attr-defined]
