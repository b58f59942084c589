"""Perplexity, bits per byte, extrapolation, and what compressors reach."""

from lagwise.evaluation.compression import compressor_bits_per_byte
from lagwise.evaluation.perplexity import Score, evaluate, extrapolation
from lagwise.evaluation.run import DEFAULT_LENGTHS, DEFAULT_TOKENS, EVALUATION_FILE, evaluate_run

__all__ = [
    "DEFAULT_LENGTHS",
    "DEFAULT_TOKENS",
    "EVALUATION_FILE",
    "Score",
    "compressor_bits_per_byte",
    "evaluate",
    "evaluate_run",
    "extrapolation",
]
