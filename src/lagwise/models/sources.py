"""Digests of the source code that a model depends on."""

from __future__ import annotations

import contextlib
import functools
import hashlib
import importlib.util
import re
import sys
import sysconfig
from importlib.machinery import ModuleSpec, PathFinder
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from torch import nn

_BY_VERSION = {"torch", "transformers"}  # too large to read, and always released with a version number
_IMPORT = re.compile(
    rb"^[ \t]*(?:from[ \t]+(?P<module>[\w.]+)[ \t]+import[ \t]+(?P<names>\([^)]*\)|.+)|import[ \t]+(?P<modules>\w.*))",
    re.MULTILINE,
)
_TYPE_CHECKING = re.compile(rb"^if TYPE_CHECKING:\n(?:[ \t].*\n|\n)*", re.MULTILINE)
_NAME = re.compile(r"([A-Za-z_]\w*(?:\.\w+)*)(?: +as +\w+)?")


def source_digests(model: nn.Module) -> dict[str, str]:
    """Digests of the modules of a model's classes and of all that these import, also inside of functions.

    Returns digests of sources by the names of modules. Of installed packages other than those of the classes, it has
    the versions; scripts and the modules beside them count with their sources.

    Raises:
        ValueError: If a class has no source file, for example because it was defined in a notebook or by `exec`.
    """
    classes = {each for part in model.modules() for each in type(part).__mro__ if each is not object}
    own = {_package(each.__module__) for each in classes} - _BY_VERSION
    for each in classes:
        if _package(each.__module__) in own and _path(each.__module__) is None:
            raise ValueError(
                f"{each.__name__} cannot be compiled: it has no source file, whose changes would be noticed; define it "
                "in a module that is imported"
            )
    digests: dict[str, str] = {}
    installed: set[str] = set()
    todo = {each.__module__ for each in classes}
    while todo:
        name = todo.pop()
        package = _package(name)
        if package not in own and _installed(package):
            installed.add(package)
        elif (path := _path(name)) is not None:
            digests[name], imports = _read(name, path, path.stat().st_mtime_ns)
            todo |= imports - digests.keys()
    return digests | {package: each for package in installed if (each := _version(package))}


def _package(name: str) -> str:
    return name.partition(".")[0]


@functools.cache
def _installed(package: str) -> bool:
    """Whether a package is Python's own or in its folders for installed packages, or cannot be found."""
    path = _path(package)
    if path is None or package in sys.stdlib_module_names - {"__main__"}:
        return True
    return any(path.is_relative_to(Path(sysconfig.get_path(name)).resolve()) for name in ("purelib", "platlib"))


@functools.cache
def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return ""


def _path(name: str) -> Path | None:
    """Path of a module's source; None if it has none, or if there is no such module."""
    module = sys.modules.get(name)
    spec = _spec(name) if module is None else None
    origin = getattr(module, "__file__", None) if spec is None else spec.origin
    return Path(origin).resolve() if origin is not None and origin.endswith(".py") else None


@functools.cache
def _spec(name: str) -> ModuleSpec | None:
    """A module's spec, found without importing the packages that it is in."""
    parent, _, _ = name.rpartition(".")
    if not parent:
        return importlib.util.find_spec(name)
    folders = getattr(sys.modules.get(parent), "__path__", None)
    if parent not in sys.modules:
        spec = _spec(parent)
        folders = None if spec is None else spec.submodule_search_locations
    return None if folders is None else PathFinder.find_spec(name, list(folders))


@functools.lru_cache(maxsize=1 << 12)
def _read(name: str, path: Path, modified_ns: int) -> tuple[str, frozenset[str]]:
    """Digest of a module's source, and names of modules, and others, that it imports."""
    source = path.read_bytes()
    package = name if path.name == "__init__.py" else name.rpartition(".")[0]
    return hashlib.sha256(source).hexdigest(), frozenset(_imports(source, package))


def _imports(source: bytes, package: str) -> set[str]:
    """Names of modules, and others, that a source imports."""
    imports: set[str] = set()
    for match in _IMPORT.finditer(_TYPE_CHECKING.sub(b"", source)):
        names = _NAME.findall((match["names"] or match["modules"]).decode())
        if match["modules"]:
            imports.update(names)
            continue
        with contextlib.suppress(ImportError):  # a sentence of a docstring may look like a relative import
            module = importlib.util.resolve_name(match["module"].decode(), package)
            imports.update((module, *(f"{module}.{each}" for each in names)))
    return imports
