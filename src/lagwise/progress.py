"""Progress bars: redrawn in place in a terminal or notebook, and occasional lines in a file."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from typing import Any

from tqdm.asyncio import tqdm_asyncio
from tqdm.auto import tqdm as interactive_bar
from tqdm.std import tqdm

LINE_SECONDS = 10.0


def progress_bar(iterable: Iterable[Any] | None = None, *, show: bool, **options: Any) -> Any:
    """Make a tqdm bar on standard error, over an iterable or for ``update``; without ``show``, it prints nothing.

    If standard error is neither a terminal nor a notebook's, it writes a line at most every 10 seconds, and one at the
    end. options: tqdm's ``desc``, ``total``, ``initial``, ``unit`` and ``unit_scale``.
    """
    in_notebook = interactive_bar is not tqdm_asyncio
    kind = interactive_bar if in_notebook or (sys.stderr is not None and sys.stderr.isatty()) else _Lines
    return kind(iterable, disable=not show, **options)


class _Lines(tqdm):
    """A bar that writes each state on a separate line, as wide as needed."""

    def __init__(self, iterable: Iterable[Any] | None, **options: Any):
        # `gui`: this class displays itself, so tqdm writes no carriage returns and nothing at the start. A fixed
        # `miniters` keeps tqdm's monitoring thread from showing more.
        super().__init__(iterable, gui=True, miniters=0, mininterval=LINE_SECONDS, **options)
        self.ncols = None

    def display(self, msg: str | None = None, pos: int | None = None) -> None:
        self.fp.write(f"{self}\n")
        self.fp.flush()

    def close(self) -> None:
        shown = not self.disable
        super().close()
        if shown:
            self.display()
