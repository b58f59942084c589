"""Perplexity, bits per byte, extrapolation, what compressors reach, and accuracy of recall."""

from lagwise.evaluation.compression import compressor_bits_per_byte
from lagwise.evaluation.perplexity import Score, evaluate, extrapolation
from lagwise.evaluation.recall import Recall, recall
from lagwise.evaluation.run import DEFAULT_LENGTHS, DEFAULT_SEQUENCES, DEFAULT_TOKENS, EVALUATION_FILE, evaluate_run

__all__ = [
    "DEFAULT_LENGTHS",
    "DEFAULT_SEQUENCES",
    "DEFAULT_TOKENS",
    "EVALUATION_FILE",
    "Recall",
    "Score",
    "compressor_bits_per_byte",
    "evaluate",
    "evaluate_run",
    "extrapolation",
    "recall",
]
