"""General compressors on the same bytes, the baseline that needs no training."""

from __future__ import annotations

import bz2
import gzip
import lzma


def compressor_bits_per_byte(text: bytes, *, window: int = 512) -> dict[str, float]:
    """Measure bits per byte of gzip, bz2 and xz at their highest level on the whole text, and of gzip on separate
    windows.

    ``gzip, N-byte windows`` compresses each window separately, as a model with that length sees it. Container headers
    count, as users would count them. ValueError for an empty text.

    >>> bits = compressor_bits_per_byte(b"to be or not to be. " * 100)
    >>> bits["gzip"] < 1
    True
    """
    if not text:
        raise ValueError("there is no text to compress")
    windows = [text[i : i + window] for i in range(0, len(text), window)]
    sizes = {
        f"gzip, {window}-byte windows": sum(len(gzip.compress(w, 9, mtime=0)) for w in windows),
        "gzip": len(gzip.compress(text, 9, mtime=0)),
        "bz2": len(bz2.compress(text, 9)),
        "xz": len(lzma.compress(text, preset=9 | lzma.PRESET_EXTREME)),
    }
    return {name: 8 * size / len(text) for name, size in sizes.items()}
