"""Make `AutoModelForCausalLM.from_pretrained` know lagwise after ``import lagwise``, without importing anything heavy.

transformers takes seconds to import, and ``import lagwise`` must not. Our configuration and model modules register
themselves with the Auto classes; here we see to it that they are imported as soon as the Auto classes are.
"""

from __future__ import annotations

import importlib.abc
import importlib.machinery
import sys
from collections.abc import Sequence
from types import ModuleType

_ON_IMPORT = {
    "transformers.models.auto.configuration_auto": "lagwise.models.configuration",
    "transformers.models.auto.modeling_auto": "lagwise.models.modeling",
}
# These import the Auto classes before they define what our modules need of them.
_FIRST_WHOLE = {"transformers.modeling_layers"}


class _AfterImport(importlib.abc.MetaPathFinder):
    """Finds the two Auto modules like everybody else, and imports ours after they have run, and whatever imported them
    that ours need whole."""

    def __init__(self) -> None:
        self._running = 0  # modules of `_FIRST_WHOLE`
        self._waiting: list[str] = []

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if fullname not in _ON_IMPORT and fullname not in _FIRST_WHOLE:
            return None
        spec = importlib.machinery.PathFinder.find_spec(fullname, path, target)
        if spec is None or spec.loader is None:
            return None
        run = spec.loader.exec_module

        def exec_module(module: ModuleType) -> None:
            whole = fullname in _FIRST_WHOLE
            self._running += whole
            try:
                run(module)
            finally:
                self._running -= whole
            if not whole:
                self._waiting.append(_ON_IMPORT[fullname])
            while self._waiting and not self._running:
                importlib.import_module(self._waiting.pop(0))

        spec.loader.exec_module = exec_module  # this loader object serves this one import
        return spec


def register() -> None:
    """Register with the Auto classes now if they are imported, else when they will be."""
    for theirs, ours in _ON_IMPORT.items():
        if theirs in sys.modules:
            importlib.import_module(ours)
    if not any(isinstance(finder, _AfterImport) for finder in sys.meta_path):
        sys.meta_path.insert(0, _AfterImport())
