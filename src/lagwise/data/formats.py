"""Every published format by name, the values of ``data.format``."""

from __future__ import annotations

from lagwise.data.generated import RETRIEVAL, generated_source
from lagwise.data.published import ARENA, LAYOUTS
from lagwise.data.row_formats import FormatSource, open_row_format
from lagwise.tables import known

FORMATS = {**LAYOUTS, **ARENA}


def open_format(name: str, format: str) -> FormatSource:
    """Labelled rows of a published data set. format: a name of `FORMATS`. name as in `open_row_format`, or of a data
    set that is generated (`lagwise.data.generated`). Errors as `open_row_format`."""
    found = FORMATS[known(format, FORMATS, "data.format")]
    if name == RETRIEVAL:
        raise FileNotFoundError(
            f"{RETRIEVAL} is made of your own texts: write it with lagwise.data.generated.generate, or 'lagwise data "
            f"{RETRIEVAL}', and give the folder"
        )
    return open_row_format(str(generated_source(name) or name), found)
