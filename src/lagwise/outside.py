"""The tables of parts, which other packages can extend."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Mapping, MutableMapping
from importlib.metadata import EntryPoint, entry_points
from importlib.util import find_spec
from typing import Any

from lagwise.files import one_line

#: What lagwise-papers has, the distribution in the folder `papers` of the repository, by the names that configurations,
#: recipes and commands give.
IN_PAPERS = frozenset(
    (
        *("hyena", "linear_attention", "lru", "s5", "gss", "flash", "gmlp", "synthesizer", "long_short"),
        *("relative_attention", "fnet", "gfnet", "afno", "afno2d"),
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


class Parts(MutableMapping[str, Any]):
    """Parts, mostly classes, by the names that configurations give them.

    Those that packages declare as entry points are loaded at their first use, so that a package may import lagwise
    before it is complete itself. One that cannot be loaded is named in a warning, and the others still work.

    Args:
        what: What they are, for messages.
        base: Their base class; None for parts that are no classes.
        group: The group of entry points.
        own: lagwise's own parts.
    """

    def __init__(self, what: str, base: type | None, group: str, own: Mapping[str, Any]):
        self._what, self._base, self._group = what, base, group
        self._parts: dict[str, Any] = dict(own)
        self._own = frozenset(self._parts)
        self._searched = False

    def register(self, name: str, part: Any) -> None:
        """Put a part into the table. ValueError for one of lagwise's own names, TypeError for anything that is not a
        subclass of the base class."""
        self._check_name(name)
        if self._base is not None and not (isinstance(part, type) and issubclass(part, self._base)):
            base = f"{self._base.__module__}.{self._base.__name__}"
            raise TypeError(f"{self._what} {name!r} must be a subclass of {base}, got {part!r}")
        self._parts[name] = part

    def _check_name(self, name: str) -> None:
        if name in self._own:
            raise ValueError(f"lagwise has a {self._what} {name!r} itself; choose another name")

    def _search(self) -> None:
        """Enter the entry points of installed packages, once, and not before a name is asked for that is unknown."""
        if self._searched:
            return
        self._searched = True
        for point in entry_points(group=self._group):
            try:
                self._check_name(point.name)
                self._parts.setdefault(point.name, point)
            except ValueError as error:
                _warn(self._what, point, error)

    def __getitem__(self, name: str) -> Any:
        if name not in self._parts:
            self._search()
        part = self._parts[name]
        if not isinstance(part, EntryPoint):
            return part
        try:
            self.register(name, part.load())
        except Exception as error:
            _warn(self._what, part, error)
            del self._parts[name]
        return self._parts[name]

    def __setitem__(self, name: str, part: Any) -> None:
        self._parts[name] = part

    def __delitem__(self, name: str) -> None:
        del self._parts[name]

    def __iter__(self) -> Iterator[str]:
        self._search()
        return (name for name in list(self._parts) if name in self)

    def __len__(self) -> int:
        return sum(1 for _ in self)


def _warn(what: str, point: EntryPoint, error: Exception) -> None:
    package = point.dist.name if point.dist else point.value
    warnings.warn(f"{what} {point.name!r} of {package} cannot be loaded: {one_line(error)}", stacklevel=3)
