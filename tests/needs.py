"""Marks of tests that need packages of an extra."""

from __future__ import annotations

import importlib.util

import pytest

needs_onnx = pytest.mark.skipif(
    any(importlib.util.find_spec(name) is None for name in ("onnx", "onnxscript", "onnxruntime")),
    reason="the extra 'export' is not installed",
)
