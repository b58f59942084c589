"""Measures that do not depend on a task: perplexity, bits per byte, extrapolation, and general compressors."""

from lagwise.evaluation.perplexity import compressor_bits_per_byte, evaluate, masked_score

__all__ = ["compressor_bits_per_byte", "evaluate", "masked_score"]
