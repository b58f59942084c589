"""Published data sets whose files have layouts of their own, which other packages declare as entry points."""

from __future__ import annotations

from lagwise.outside import Parts

#: The values of ``data.format``. Each opens the files of a name as a `RowSource` (``open``), and has the columns of its
#: texts (``texts``) and what a text is in its files (``cleaned``).
FORMATS = Parts("format", None, "lagwise.formats", {})
#: Functions of the arguments of `open_images`, which return None for what is not in their layout.
IMAGE_LAYOUTS = Parts("layout of images", None, "lagwise.image_layouts", {})
