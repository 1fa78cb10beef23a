"""SwiGLU as one Triton kernel."""

import triton
import triton.language as tl


@triton.jit
def swiglu_kernel(
    gate,  # row r begins at r * stride: [rows, size]
    up,  # likewise
    output,  # [rows, size]
    stride,
    size,
    BLOCK: tl.constexpr,  # channels per program, a power of two
):
    """Compute silu(gate) * up. silu is rounded first. The launch grid is (rows, size / BLOCK rounded up)."""
    row = tl.program_id(0).to(tl.int64)
    channel = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = channel < size
    g = tl.load(gate + row * stride + channel, mask=inside, other=0.0).to(tl.float32)
    u = tl.load(up + row * stride + channel, mask=inside, other=0.0)
    silu = (g * tl.sigmoid(g)).to(u.dtype).to(tl.float32)
    tl.store(output + row * size + channel, (silu * u.to(tl.float32)).to(u.dtype), mask=inside)
