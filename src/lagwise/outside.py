"""Registries of classes and other entries, which other packages can extend."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Mapping, MutableMapping
from importlib.metadata import EntryPoint, entry_points
from importlib.util import find_spec
from typing import Any

from lagwise.files import one_line

#: Contents of lagwise-papers, the distribution in the folder `papers` of the repository, by the names that
#: configurations, recipes and commands give.
IN_PAPERS = frozenset(
    (
        *("hyena", "linear_attention", "lru", "s5", "gss", "flash", "gmlp", "synthesizer", "long_short"),
        *("relative_attention", "fnet", "gfnet", "afno", "afno2d", "caracal", "toeplitz_heads"),
        *("associative_recall", "multi_query_recall", "dna_classification"),
        *(".fasta", ".fa", ".fna", ".ffn", ".faa", ".fastq", ".fq"),
        *("aan", "cola", "listops", "mnli", "mrpc", "qnli", "qqp", "rte", "sst2", "stsb", "wnli"),
        *("lra-listops", "lra-pathfinder", "lra-path-x", "lra-retrieval", "lra-image", "lra-text"),
        *("lra-listops-small", "lra-pathfinder-small", "lra-path-x-small", "lra-retrieval-small"),
        *("lra-image-small", "lra-text-small", "associative-recall", "multi-query-recall"),
        *("glue-cola", "glue-mnli", "glue-mrpc", "glue-qnli", "glue-qqp", "glue-rte", "glue-sst2", "glue-stsb"),
        *("glue-wnli", "dna", "bench", "data", "import", "theory"),
    )
)


def elsewhere(name: Any) -> str | None:
    """Say, for messages, how to install lagwise-papers if it has this name and is not installed; otherwise return
    None."""
    if not isinstance(name, str) or name.partition(":")[0] not in IN_PAPERS or find_spec("lagwise_papers"):
        return None
    return f"{name!r} is in lagwise-papers, which is not installed: pip install ./papers, in a clone of lagwise"


class Registry(MutableMapping[str, Any]):
    """Registry of entries, mostly subclasses of ``base``, by the names that configurations give them; ``noun`` names
    one in messages. An entry that a package declares as an entry point of the ``group`` is loaded at its first use, so
    that a package may import lagwise before it is complete itself. If it cannot be loaded, a warning names it."""

    def __init__(self, noun: str, base: type | None, group: str, builtin: Mapping[str, Any]):
        self._noun, self._base, self._group = noun, base, group
        self._entries: dict[str, Any] = dict(builtin)
        self._builtin = frozenset(self._entries)
        self._searched = False

    def register(self, name: str, entry: Any) -> None:
        """Add an entry. ValueError for one of lagwise's own names, TypeError for anything that is not a subclass of the
        base class."""
        self._check_name(name)
        if self._base is not None and not (isinstance(entry, type) and issubclass(entry, self._base)):
            base = f"{self._base.__module__}.{self._base.__name__}"
            raise TypeError(f"{self._noun} {name!r} must be a subclass of {base}, got {entry!r}")
        self._entries[name] = entry

    def _check_name(self, name: str) -> None:
        if name in self._builtin:
            raise ValueError(f"lagwise has a {self._noun} {name!r} itself; choose another name")

    def _search(self) -> None:
        """Add the entry points of installed packages, once, and not before an unknown name is looked up."""
        if self._searched:
            return
        self._searched = True
        for point in entry_points(group=self._group):
            try:
                self._check_name(point.name)
                self._entries.setdefault(point.name, point)
            except ValueError as error:
                _warn(self._noun, point, error)

    def __getitem__(self, name: str) -> Any:
        if name not in self._entries:
            self._search()
        entry = self._entries[name]
        if not isinstance(entry, EntryPoint):
            return entry
        try:
            self.register(name, entry.load())
        except Exception as error:
            _warn(self._noun, entry, error)
            del self._entries[name]
        return self._entries[name]

    def __setitem__(self, name: str, entry: Any) -> None:
        self._entries[name] = entry

    def __delitem__(self, name: str) -> None:
        del self._entries[name]

    def __iter__(self) -> Iterator[str]:
        self._search()
        return (name for name in list(self._entries) if name in self)

    def __len__(self) -> int:
        return sum(1 for _ in self)


def _warn(noun: str, point: EntryPoint, error: Exception) -> None:
    package = point.dist.name if point.dist else point.value
    warnings.warn(f"{noun} {point.name!r} of {package} cannot be loaded: {one_line(error)}", stacklevel=3)
