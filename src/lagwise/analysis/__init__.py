"""The learned kernels of a model, in numbers and plots."""

from lagwise.analysis.kernels import LayerKernel, learned_kernels

__all__ = ["LayerKernel", "learned_kernels"]
