"""Compiled code is loaded only if this user compiled it; otherwise it is compiled again."""

from __future__ import annotations

import os
import stat
import subprocess
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from lagwise import compiler
from lagwise.cache import default_cache
from lagwise.compiler import find_compiler, load_compiled

SOMEONE_ELSE = 12345
FLAGS = ("-shared", "-fPIC")

if find_compiler() is None:
    pytest.skip("no C compiler here", allow_module_level=True)
as_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can give files away")


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.delenv("CC", raising=False)
    monkeypatch.setenv("LAGWISE_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture
def source(tmp_path: Path) -> Path:
    path = tmp_path / "answer.c"
    path.write_text("int answer(void) { return 42; }\n")
    return path


@pytest.fixture
def planted(cache: Path, source: Path) -> Path:
    """A compiled library that was replaced by another one with a matching digest."""
    answer(source)
    (library,) = (cache / "native").glob("*.so")
    return plant(library, "int answer(void) { return 13; }")


def plant(library: Path, code: str) -> Path:
    """Put a library of this code in place of another one, with a matching digest."""
    library.unlink()  # what is loaded stays as it was
    subprocess.run(["cc", *FLAGS, "-xc", "-", "-o", library], input=code, text=True, check=True)
    return record(library)


def record(library: Path) -> Path:
    library.chmod(0o600)
    return library.rename(library.with_stem(f"{library.stem.partition('-')[0]}-{compiler._digest(library)}"))


def answer(source: Path) -> int:
    found = find_compiler()
    assert found is not None
    return load_compiled([source], found, FLAGS, lambda library: library.answer())


def script(path: Path, *lines: str) -> Path:
    path.write_text("\n".join(("#!/bin/sh", *lines, "")))
    path.chmod(0o755)
    return path


def test_a_users_own_library_is_loaded(planted: Path, source: Path) -> None:
    """Without a warning; the libraries planted by the tests below could be loaded."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert answer(source) == 13


@pytest.mark.parametrize("level", [0, 1])
@pytest.mark.parametrize("mode", [0o777, 0o770, 0o702, pytest.param(None, marks=as_root)])
def test_a_cache_of_which_others_may_write_or_own_a_folder_is_not_used(
    planted: Path, source: Path, level: int, mode: int | None
) -> None:
    if mode is None:
        os.chown(planted.parents[level], SOMEONE_ELSE, -1)
    else:
        planted.parents[level].chmod(mode)
    before = planted.read_bytes()
    why = f"belongs to another user .number {SOMEONE_ELSE}" if mode is None else "others may write to .*chmod go-w"
    with pytest.warns(UserWarning, match=f"compiled for this process alone: .*{why}") as said:
        assert answer(source) == 42
    assert len(said) == 1
    assert planted.read_bytes() == before
    assert not [f for f in planted.parent.iterdir() if f.is_dir()]


def _link(path: Path) -> None:
    path.replace(path.with_suffix(".elsewhere"))
    path.symlink_to(path.with_suffix(".elsewhere"))


@pytest.mark.parametrize(
    "change",
    [
        pytest.param(lambda path: os.chown(path, SOMEONE_ELSE, -1), marks=as_root),
        lambda path: path.chmod(0o660),
        _link,
    ],
)
def test_files_that_others_may_have_made_are_replaced(
    planted: Path, source: Path, change: Callable[[Path], None]
) -> None:
    change(planted)
    assert answer(source) == 42
    (library,) = planted.parent.glob("*.so")
    status = library.lstat()
    assert (status.st_uid, stat.S_IMODE(status.st_mode)) == (os.geteuid(), 0o600)
    assert stat.S_ISREG(status.st_mode)


@pytest.mark.parametrize(
    ("content", "recorded"), [(b"", True), (b"\x7fELF", True), (b"no library at all", False), (None, True)]
)
def test_a_library_that_does_not_serve_is_compiled_again(
    planted: Path, source: Path, content: bytes | None, recorded: bool
) -> None:
    """None: a library without the function."""
    if content is None:
        plant(planted, "int question(void) { return 6 * 9; }")
    else:
        planted.unlink()
        planted.write_bytes(content)
        if recorded:
            record(planted)
    assert answer(source) == 42
    assert answer(source) == 42
    (library,) = planted.parent.glob("*.so")
    assert len(library.read_bytes()) > 1000


def test_a_result_that_does_not_load_is_not_kept(
    source: Path, cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CC", str(script(tmp_path / "mycc", 'for last; do :; done; echo rubbish > "$last"')))
    with pytest.raises(OSError, match=r"library\.so"):
        answer(source)
    assert list((cache / "native").iterdir()) == []


@pytest.fixture
def no_umask() -> Iterator[None]:
    before = os.umask(0)
    yield
    os.umask(before)


@pytest.mark.usefixtures("no_umask")
def test_only_the_user_has_access_whatever_the_umask(source: Path, cache: Path, tmp_path: Path) -> None:
    assert answer(source) == 42
    modes = {path: stat.S_IMODE(path.stat().st_mode) for path in (cache, *cache.rglob("*"))}
    assert {mode for path, mode in modes.items() if path.is_dir()} == {0o700}
    assert {mode for path, mode in modes.items() if path.is_file()} == {0o600}
    assert [path.suffix for path in modes if path.is_file()] == [".so"]


@pytest.mark.parametrize("entry", [".", "", "bin", "./bin"])
def test_programs_in_the_current_folder_are_not_run(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, entry: str
) -> None:
    (tmp_path / entry).mkdir(exist_ok=True)
    for name in ("cc", "as", "ld"):
        script(tmp_path / entry / name, f"touch {tmp_path / 'run'}", "exit 1")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PATH", f"{entry}{os.pathsep}{os.environ['PATH']}")
    assert answer(source) == 42
    assert not (tmp_path / "run").exists()


def test_headers_in_the_current_folder_are_not_read(
    tmp_path: Path, source: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An empty entry of CPATH, as often left by ``CPATH=$CPATH:more``, means the current folder."""
    source.write_text('#include <string.h>\nint answer(void) { return (int)strlen("42") * 21; }\n')
    (tmp_path / "string.h").write_text("#define strlen(text) 0\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("CPATH", ":/nowhere")
    assert answer(source) == 42


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ("cc '", 'CC="cc \'" cannot be read: No closing quotation'),
        ("./cc", "CC must be a name on PATH or an absolute path, got './cc'"),
        ("no-such-cc -O1", "there is no compiler 'no-such-cc'"),
        ("/no/such/cc", "there is no compiler '/no/such/cc'"),
    ],
)
def test_a_compiler_that_cannot_be_found_is_named(monkeypatch: pytest.MonkeyPatch, value: str, message: str) -> None:
    monkeypatch.setenv("CC", value)
    with pytest.raises((ValueError, OSError)) as raised:
        find_compiler()
    assert message in str(raised.value)


def test_a_compilers_message_may_be_in_any_encoding(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CC", str(script(tmp_path / "mycc", r"printf 'erreur: \351t\351' >&2", "exit 3")))
    with pytest.raises(RuntimeError, match=r"mycc.*status 3: erreur: \ufffdt\ufffd"):
        answer(source)


def test_another_compiler_or_header_makes_another_library(
    source: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    header = source.with_name("answer.h")
    source.write_text('#include "answer.h"\nint answer(void) { return ANSWER; }\n')
    for value, number in (("cc", 42), ("cc -g0", 42), ("cc", 42), ("cc", 13), ("", 13), ("  ", 13)):
        monkeypatch.setenv("CC", value)  # an empty name means none
        header.write_text(f"enum {{ ANSWER = {number} }};\n")
        found = find_compiler()
        assert found is not None
        assert load_compiled([header, source], found, FLAGS, lambda library: library.answer()) == number
    assert len(list((cache / "native").glob("*.so"))) == 3


class TestCacheFolder:
    def test_an_empty_variable_counts_as_unset(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.chdir(tmp_path)
        monkeypatch.setenv("HOME", str(tmp_path / "home"))
        monkeypatch.setenv("LAGWISE_CACHE", "")
        assert default_cache() == tmp_path / "home" / ".cache" / "lagwise"
        assert stat.S_IMODE((tmp_path / "home" / ".cache").stat().st_mode) == 0o700
        assert [f.name for f in tmp_path.iterdir()] == ["home"]

    def test_an_unknown_users_home_is_an_error(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("LAGWISE_CACHE", "~nosuchuser/cache")
        with pytest.raises(ValueError, match=r"'~nosuchuser/cache' cannot be found .*set LAGWISE_CACHE"):
            default_cache()

    def test_compilation_works_without_it(self, source: Path, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        """A container's user may have no home folder."""
        cache.write_text("a file")
        with pytest.warns(UserWarning, match="this process alone: .*File exists"):
            assert answer(source) == 42
        monkeypatch.setenv("LAGWISE_CACHE", "~nosuchuser/cache")
        with pytest.warns(UserWarning, match="this process alone: the cache '~nosuchuser/cache' cannot be found"):
            assert answer(source) == 42
