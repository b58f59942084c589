"""Measures that do not depend on a task: perplexity, bits per byte, extrapolation, and general compressors."""

from lagwise.evaluation.compression import compressor_bits_per_byte
from lagwise.evaluation.perplexity import MaskedScore, Score, evaluate, extrapolation, masked_score

__all__ = ["MaskedScore", "Score", "compressor_bits_per_byte", "evaluate", "extrapolation", "masked_score"]
