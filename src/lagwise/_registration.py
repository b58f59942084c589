"""Make lagwise known to `AutoModelForCausalLM.from_pretrained` after ``import lagwise``, without heavy imports.

transformers takes seconds to import, and ``import lagwise`` must not. Our modules register themselves with the Auto
classes; this module imports them as soon as the Auto classes are imported. While one of our own model modules, or
transformers' module of layers, is being imported, which may be what imports the Auto classes, the others wait until it
is complete, because they may need it.
"""

from __future__ import annotations

import importlib.abc
import importlib.machinery
import sys
from collections.abc import Sequence
from types import ModuleType

_ON_IMPORT = {
    "transformers.models.auto.configuration_auto": "lagwise.models.configuration",
    "transformers.models.auto.modeling_auto": "lagwise.models.registry",
    "transformers.models.auto.tokenization_auto": "lagwise.models.tokenizer",
}
# Our modules may need these complete, and importing one of them may import the Auto classes.
_FIRST = ("lagwise.models.", "transformers.modeling_layers")
_due: list[str] = []  # our modules, to be imported once no module of _FIRST is
_running: list[str] = []


class _AfterImport(importlib.abc.MetaPathFinder):
    """Finds the modules above through the other finders, and imports what is due after them."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if fullname not in _ON_IMPORT and not fullname.startswith(_FIRST):
            return None
        spec = importlib.machinery.PathFinder.find_spec(fullname, path, target)
        if spec is None or spec.loader is None:
            return None
        run = spec.loader.exec_module

        def exec_module(module: ModuleType) -> None:
            first = fullname.startswith(_FIRST)
            _running.extend([fullname] * first)
            try:
                run(module)
            finally:
                if first:
                    _running.remove(fullname)
            _due.extend([] if first else [_ON_IMPORT[fullname]])
            while _due and not _running:
                importlib.import_module(_due.pop(0))

        spec.loader.exec_module = exec_module  # this loader object is used for this import only
        return spec


def register() -> None:
    """Register with the Auto classes now if they are imported, otherwise when they are."""
    for theirs, ours in _ON_IMPORT.items():
        if theirs in sys.modules:
            importlib.import_module(ours)
    if not any(isinstance(finder, _AfterImport) for finder in sys.meta_path):
        sys.meta_path.insert(0, _AfterImport())
