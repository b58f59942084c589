"""Marks of tests that need packages of an extra, or a compiler."""

from __future__ import annotations

import importlib.util

import pytest

from lagwise.compiler import find_compiler

needs_chip = pytest.mark.skipif(
    any(importlib.util.find_spec(name) is None for name in ("onnx", "onnxscript", "onnxruntime", "emx_onnx_cgen")),
    reason="the extra 'chip' is not installed",
)
needs_onnx = pytest.mark.skipif(
    any(importlib.util.find_spec(name) is None for name in ("onnx", "onnxscript", "onnxruntime")),
    reason="the extra 'export' is not installed",
)
needs_compiler = pytest.mark.skipif(find_compiler() is None, reason="there is no C or C++ compiler")
