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
    key,  # [rows, width]: heads of `size` channels, and zeros
    value,  # likewise
    heads,
    kv_heads,
    value_head,  # head of all products from which values are: heads + kv_heads, or `heads` if keys are values too
    size,
    width,
    rotated,  # the first channels of a head, which rotate: channel c with channel c + rotated / 2
    normalizes_values,  # 0 or 1: whether values have a norm without a weight, if NORM
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
    half = rotated // 2
    if head < heads:
        source = query_in + wide * query_stride + head * size
        target = query + (wide * heads + head) * size
        scales = (row_scales, column_scales + head * size, has_scales)
        weights = (bias + head * size, has_bias, query_norm, 1, 1)
        _write_head(source, scales, weights, cos, sin, target, row, half, size, epsilon, CHANNELS, NORM)
    elif head < heads + kv_heads:
        scales = (row_scales, column_scales + head * size, has_scales)
        weights = (bias + head * size, has_bias, key_norm, 1, 1)
        head -= heads
        source = key_in + wide * key_stride + head * size
        target = key + wide * width
        _fill(target, head, kv_heads * size, width, CHANNELS)
        target += head * size
        _write_head(source, scales, weights, cos, sin, target, row, half, size, epsilon, CHANNELS, NORM)
    else:
        head -= heads + kv_heads
        place = (value_head + head) * size
        scales = (row_scales, column_scales + place, has_scales)
        weights = (bias + place, has_bias, key_norm, normalizes_values, 0)
        source = value_in + wide * key_stride + head * size
        target = value + wide * width
        _fill(target, head, kv_heads * size, width, CHANNELS)
        target += head * size
        _write_head(source, scales, weights, cos, sin, target, row, 0, size, epsilon, CHANNELS, NORM)


@triton.jit
def _fill(target, head, begin, width, CHANNELS: tl.constexpr):
    """Write the zeros of a row, if this is its first head."""
    for start in range(tl.where(head == 0, begin, width), width, CHANNELS):
        channel = start + tl.arange(0, CHANNELS)
        tl.store(target + channel, tl.zeros([CHANNELS], target.dtype.element_ty), mask=channel < width)


@triton.jit
def _write_head(
    source,
    scales,
    weights,  # bias, 0 or 1: whether there is one, norm, and whether it applies and has a weight, likewise
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
        factor = tl.where(weights[3] != 0, 1.0 / tl.sqrt_rn(squares / size + epsilon), 1.0)
        a = _scaled(a, factor, weights, low, rotates)
        b = _scaled(b, factor, weights, half + low, rotates)
        c = _scaled(c, factor, weights, rest, remains)
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
def _scaled(x, factor, weights, channel, inside):
    """Return normalized channels, rounded to the norm's type, in float32."""
    weight = tl.load(weights[2] + channel, mask=inside & (weights[4] != 0), other=1.0)
    return (x * factor * weight.to(tl.float32)).to(weight.dtype).to(tl.float32)
