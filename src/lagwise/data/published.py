"""Kinds of files, tokenizers and published layouts that other packages declare as entry points."""

from __future__ import annotations

from lagwise.outside import Registry

#: The values of ``data.format``. Each opens the files of a name as a `RowSource` (``open``), and has the columns of its
#: texts (``texts``) and what a text is in its files (``cleaned``).
FORMATS = Registry("format", None, "lagwise.formats", {})
#: Functions of the arguments of `open_images`, which return None for what is not in their layout.
IMAGE_LAYOUTS = Registry("layout of images", None, "lagwise.image_layouts", {})
#: Modules for files of records, by suffix. ``read(data, path, columns)`` returns a table with a row for each record:
#: its ``text``, and as ``label`` the file's own name.
RECORD_FILES = Registry("kind of file", None, "lagwise.record_files", {})
#: Modules for values of ``data.tokenizer``. ``tokenizer()`` makes one of `tokenizers`, ``notes(texts)`` says what
#: is unusual about training texts.
TOKENIZERS = Registry("tokenizer", None, "lagwise.tokenizers", {})
