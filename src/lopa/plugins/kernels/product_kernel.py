"""Products of rows with quantized matrices as Triton kernels, which read the matrices as the bundle stores them.

A program has a tile of columns, a tile of rows and a part of the inputs. It computes the tile transposed, so that few
rows take few instructions of the tensor cores. Parts depend on no number of rows. Their sums go to scratch memory, and
the last kernel adds them in order.
"""

import triton
import triton.language as tl

INPUTS_PER_SCALE = tl.constexpr(32)
"""Inputs that share a scale of an int4 matrix."""


@triton.jit
def int4_product_kernel(
    x,  # [rows, inputs]
    weight,  # int32 [inputs, outputs / 8]: eight numbers of 4 bits, the first in the lowest bits
    scales,  # [inputs / 32, outputs]
    output,  # [rows, outputs]
    parts,  # float32 [parts, rows, outputs], written if there are several
    rows,
    inputs,
    outputs,
    inputs_per_part,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
    DEPTH: tl.constexpr,  # inputs per step
):
    """Multiply by a matrix whose numbers are multiplied by their scales in registers, and rounded like x.

    The launch grid is (outputs / COLUMNS, rows / ROWS, parts), rounded up.
    """
    blocks: tl.constexpr = DEPTH // INPUTS_PER_SCALE
    row = tl.program_id(1) * ROWS + tl.arange(0, ROWS)
    word = tl.program_id(0) * (COLUMNS // 8) + tl.arange(0, COLUMNS // 8)
    column = tl.program_id(0) * COLUMNS + tl.arange(0, COLUMNS)
    begin = tl.program_id(2) * inputs_per_part
    end = tl.minimum(begin + inputs_per_part, inputs)
    from_row = x + row[:, None].to(tl.int64) * inputs
    total = tl.zeros([COLUMNS, ROWS], tl.float32)
    for start in range(begin, end, DEPTH):
        k = start + tl.arange(0, DEPTH)
        a = tl.load(from_row + k[None, :], mask=(row < rows)[:, None] & (k < end)[None, :], other=0.0)
        wanted = (k < end)[:, None] & (word < outputs // 8)[None, :]
        w = tl.load(weight + k[:, None] * (outputs // 8) + word[None, :], mask=wanted, other=0)
        block = start // INPUTS_PER_SCALE + tl.arange(0, blocks)
        wanted = (block * INPUTS_PER_SCALE < end)[:, None] & (column < outputs)[None, :]
        scale = tl.load(scales + block[:, None] * outputs + column[None, :], mask=wanted, other=0.0).to(tl.float32)
        numbers = tl.reshape(_numbers(w), (blocks, INPUTS_PER_SCALE, COLUMNS)) * scale[:, None, :]
        numbers = tl.reshape(numbers, (DEPTH, COLUMNS)).to(a.dtype)
        total = tl.dot(tl.trans(numbers), tl.trans(a), total, input_precision="ieee")
    _store(total, output, parts, row, column, rows, outputs)


@triton.jit
def _numbers(words):
    """Return the eight int4 numbers of each word in float32, [.., words, 2, 2, 2]."""
    later = words >> 16
    even = tl.join(tl.join(_number(words, 0), _number(later, 0)), tl.join(_number(words, 8), _number(later, 8)))
    odd = tl.join(tl.join(_number(words, 4), _number(later, 4)), tl.join(_number(words, 12), _number(later, 12)))
    return tl.join(even, odd)


@triton.jit
def _number(words, BIT: tl.constexpr):
    """Return the number at a bit. With its sign bit inverted, it is the fraction of 2^(23 - BIT) + 8 + number."""
    bits = (words & (15 << BIT)) ^ ((150 - BIT) << 23 | 8 << BIT)
    return bits.to(tl.float32, bitcast=True) - (2.0 ** (23 - BIT) + 8.0)


@triton.jit
def rounded_product_kernel(
    x,  # bytes [rows, inputs]
    weight,  # bytes: int8 [inputs, outputs], e4m3 [outputs, inputs]
    output,  # as in int4_product_kernel
    parts,
    rows,
    inputs,
    outputs,
    inputs_per_part,
    factor,
    E4M3: tl.constexpr,  # True: e4m3, multiplied as float16, for GPUs without products of e4m3; False: int8
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
    DEPTH: tl.constexpr,
):
    """Multiply rounded rows by a rounded matrix, and by `factor`. The launch grid is that of int4_product_kernel.

    Sums of int8 are exact within a part.
    """
    row = tl.program_id(1) * ROWS + tl.arange(0, ROWS)
    column = tl.program_id(0) * COLUMNS + tl.arange(0, COLUMNS)
    begin = tl.program_id(2) * inputs_per_part
    end = tl.minimum(begin + inputs_per_part, inputs)
    from_row = x + row[:, None].to(tl.int64) * inputs
    there = column < outputs
    total = tl.zeros([COLUMNS, ROWS], tl.float32) if E4M3 else tl.zeros([ROWS, COLUMNS], tl.int32)
    for start in range(begin, end, DEPTH):
        k = start + tl.arange(0, DEPTH)
        a = tl.load(from_row + k[None, :], mask=(row < rows)[:, None] & (k < end)[None, :], other=0)
        if E4M3:
            place = weight + column[:, None].to(tl.int64) * inputs + k[None, :]
            w = tl.load(place, mask=there[:, None] & (k < end)[None, :], other=0)
            total = tl.dot(_half(w), tl.trans(_half(a)), total)
        else:
            place = weight + k[:, None].to(tl.int64) * outputs + column[None, :]
            w = tl.load(place, mask=(k < end)[:, None] & there[None, :], other=0)
            total = tl.dot(a, w, total, out_dtype=tl.int32)
    if not E4M3:
        total = tl.trans(total)
    _store(total.to(tl.float32) * factor, output, parts, row, column, rows, outputs)


@triton.jit
def _half(x):
    """Return e4m3 numbers as float16. NaN becomes 480: the scale of its row is NaN."""
    bits = (x.to(tl.int32) << 20) & -0x78100000
    return (bits.to(tl.float32, bitcast=True) * 2.0**120).to(tl.float16)


@triton.jit
def _store(total, output, parts, row, column, rows, outputs):
    """Store a tile [columns, rows] as output or, where inputs are in several parts, as a part."""
    inside = (row < rows)[:, None] & (column < outputs)[None, :]
    place = row[:, None].to(tl.int64) * outputs + column[None, :]
    if tl.num_programs(2) == 1:
        tl.store(output + place, tl.trans(total).to(output.dtype.element_ty), mask=inside)
    else:
        part = parts + tl.program_id(2).to(tl.int64) * rows * outputs
        tl.store(part + place, tl.trans(total), mask=inside)


@triton.jit
def product_merge_kernel(
    parts,  # float32 [count, numbers]
    output,  # [numbers]
    count,
    numbers,
    BLOCK: tl.constexpr,
):
    """Add parts in order. The launch grid is (numbers / BLOCK rounded up)."""
    place = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    inside = place < numbers
    total = tl.zeros([BLOCK], tl.float32)
    here = parts + place
    for _ in range(count):
        total += tl.load(here, mask=inside, other=0.0)
        here += numbers
    tl.store(output + place, total.to(output.dtype.element_ty), mask=inside)
