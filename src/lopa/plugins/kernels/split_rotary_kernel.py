"""Split of the projections into heads as one Triton kernel: bias, norm of a head, rotary position embedding."""

import triton
import triton.language as tl

from lopa.plugins.kernels.rounding_kernel import scaled


@triton.jit
def split_rotary_kernel(
    query_in,  # row r begins at r * query_stride: [rows, heads, size]
    key_in,  # row r begins at r * key_stride: [rows, kv_heads, size]
    value_in,  # likewise
    query_stride,
    key_stride,
    row_scales,  # float32 [rows], read if has_scales
    column_scales,  # float32 [heads + 2 * kv_heads, size], likewise
    has_scales,  # 0 or 1
    bias,  # [heads + 2 * kv_heads, size]: of query, key and value; read if has_bias
    has_bias,  # 0 or 1
    query_norm,  # [size], read if NORM
    key_norm,  # [size], read if NORM
    cos,  # [rows, rotated / 2]
    sin,  # [rows, rotated / 2]
    query,  # [rows, heads, size]
    key,  # [rows, kv_heads, size]
    value,  # likewise
    heads,
    kv_heads,
    size,
    rotated,  # the first channels of a head, which rotate: channel c with channel c + rotated / 2
    epsilon,
    CHANNELS: tl.constexpr,  # a power of two, at least `size`
    NORM: tl.constexpr,  # True: RMS norm of the heads of query and key
):
    """Write one head of one row. The launch grid is (rows, heads + 2 * kv_heads).

    The results of scales, bias, norm and rotation are each rounded to the tensors' type.
    """
    row = tl.program_id(0)
    head = tl.program_id(1)
    wide = row.to(tl.int64)
    bias += head * size
    scales = (row_scales, column_scales + head * size, has_scales)
    half = rotated // 2
    if head < heads:
        source = query_in + wide * query_stride + head * size
        target = query + (wide * heads + head) * size
        _write_head(
            source, scales, (bias, has_bias, query_norm), cos, sin, target, row, half, size, epsilon, CHANNELS, NORM
        )
    elif head < heads + kv_heads:
        head -= heads
        source = key_in + wide * key_stride + head * size
        target = key + (wide * kv_heads + head) * size
        _write_head(
            source, scales, (bias, has_bias, key_norm), cos, sin, target, row, half, size, epsilon, CHANNELS, NORM
        )
    else:
        head -= heads + kv_heads
        source = value_in + wide * key_stride + head * size
        target = value + (wide * kv_heads + head) * size
        _write_head(
            source, scales, (bias, has_bias, key_norm), cos, sin, target, row, 0, size, epsilon, CHANNELS, False
        )


@triton.jit
def _write_head(
    source,
    scales,
    weights,  # bias, 0 or 1: whether there is one, and norm
    cos,
    sin,
    target,
    row,
    half,
    size,
    epsilon,
    CHANNELS: tl.constexpr,
    NORM: tl.constexpr,
):
    """Write one head, whose first 2 * half channels rotate. It is read as two halves that rotate, and the rest."""
    low = tl.arange(0, CHANNELS // 2)
    rest = 2 * half + tl.arange(0, CHANNELS)
    rotates = low < half
    remains = rest < size
    a = _biased(source, scales, weights, row, low, rotates)
    b = _biased(source, scales, weights, row, half + low, rotates)
    c = _biased(source, scales, weights, row, rest, remains)
    if NORM:
        squares = tl.sum(a * a, 0) + tl.sum(b * b, 0) + tl.sum(c * c, 0)
        factor = 1.0 / tl.sqrt_rn(squares / size + epsilon)
        a = _scaled(a, factor, weights[2], low, rotates)
        b = _scaled(b, factor, weights[2], half + low, rotates)
        c = _scaled(c, factor, weights[2], rest, remains)
    cosine = tl.load(cos + row * half + low, mask=rotates, other=0.0).to(tl.float32)
    sine = tl.load(sin + row * half + low, mask=rotates, other=0.0).to(tl.float32)
    tl.store(target + low, (a * cosine - b * sine).to(target.dtype.element_ty), mask=rotates)
    tl.store(target + half + low, (b * cosine + a * sine).to(target.dtype.element_ty), mask=rotates)
    tl.store(target + rest, c.to(target.dtype.element_ty), mask=remains)


@triton.jit
def _biased(source, scales, weights, row, channel, inside):
    """Return channels with scales and bias, each rounded to their type, in float32."""
    x = tl.load(source + channel, mask=inside, other=0.0)
    added = tl.load(weights[0] + channel, mask=inside & (weights[1] != 0), other=0.0)
    return (scaled(x, scales, row, channel, inside) + added.to(tl.float32)).to(x.dtype).to(tl.float32)


@triton.jit
def _scaled(x, factor, norm, channel, inside):
    """Return normalized channels, rounded to the type of `norm`, in float32."""
    weight = tl.load(norm + channel, mask=inside, other=0.0)
    return (x * factor * weight.to(tl.float32)).to(weight.dtype).to(tl.float32)
