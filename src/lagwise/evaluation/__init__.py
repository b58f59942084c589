"""Perplexity, bits per byte, extrapolation, what compressors reach, accuracy of recall, and conversion."""

from lagwise.evaluation.compression import compressor_bits_per_byte
from lagwise.evaluation.conversion import CONVERSION_FILE, convert_run
from lagwise.evaluation.perplexity import Score, evaluate, extrapolation
from lagwise.evaluation.recall import Recall, recall
from lagwise.evaluation.run import DEFAULT_LENGTHS, DEFAULT_SEQUENCES, DEFAULT_TOKENS, EVALUATION_FILE, evaluate_run

__all__ = [
    "CONVERSION_FILE",
    "DEFAULT_LENGTHS",
    "DEFAULT_SEQUENCES",
    "DEFAULT_TOKENS",
    "EVALUATION_FILE",
    "Recall",
    "Score",
    "compressor_bits_per_byte",
    "convert_run",
    "evaluate",
    "evaluate_run",
    "extrapolation",
    "recall",
]
