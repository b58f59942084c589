"""What a trained model has learned, in numbers and pictures."""

from lagwise.analysis.kernels import LayerKernel, learned_kernels

__all__ = ["LayerKernel", "learned_kernels"]
