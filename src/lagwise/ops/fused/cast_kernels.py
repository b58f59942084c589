"""The source of the kernel of `linear` that casts weights. Imports Triton."""

import triton
import triton.language as tl

from lagwise.ops.fused.launcher import launched


@triton.jit
def copy(source, target, count, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(target + i, tl.load(source + i, i < count).to(target.dtype.element_ty), i < count)


@launched
def cast(a, b, c, d, to_a, to_b, to_c, to_d, a_count, b_count, c_count, d_count, BLOCK: tl.constexpr):
    """Copies of tensors in another dtype, each by the programs of one number on the second axis. PyTorch's copies of
    several tensors have a program for 65,536 numbers, so that weights keep a tenth of a card busy."""
    if tl.program_id(1) == 0:
        copy(a, to_a, a_count, BLOCK)
    elif tl.program_id(1) == 1:
        copy(b, to_b, b_count, BLOCK)
    elif tl.program_id(1) == 2:
        copy(c, to_c, c_count, BLOCK)
    else:
        copy(d, to_d, d_count, BLOCK)
