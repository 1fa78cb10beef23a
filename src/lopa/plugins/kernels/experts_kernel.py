"""Experts of a sparse layer as Triton kernels, which read the matrices of chosen experts only.

A pair is a row and one of its experts. Pairs are sorted by expert. A task has up to TILE pairs of one expert. The
kernels of the products share the tasks, whose number lies in device memory. A row's result depends on no other row,
because all tiles have one size and one order of additions.

Matrices have four kinds. Rows for int8 and fp8 (e4m3) matrices are rounded to these types by round_rows_kernel. Their
products are computed in float16, which holds both types exactly, on every GPU. Sums are float32.
"""

import triton
import triton.language as tl

from lopa.plugins.kernels.swiglu_kernel import activated

TASK_WORDS = tl.constexpr(3)
"""Words of a task: expert, place of its first pair, and number of pairs."""


@triton.jit
def expert_tasks_kernel(
    ids,  # int64 [pairs]: the expert of each pair
    tasks,  # int32: number of tasks, then the tasks
    order,  # int32 [pairs]: pairs by expert, then in their order
    pairs,
    BINS: tl.constexpr,  # a power of two, at least the number of experts
    BLOCK: tl.constexpr,  # pairs per step
    TILE: tl.constexpr,
):
    """List the pairs and tasks of one expert. The launch grid is (experts)."""
    expert = tl.program_id(0)
    bins = tl.arange(0, BINS)
    counts = tl.zeros([BINS], tl.int32)
    for start in range(0, pairs, BLOCK):
        chosen, inside = _chosen(ids, start, pairs, BLOCK)
        counts += tl.histogram(chosen, BINS, mask=inside)
    tiles = (counts + TILE - 1) // TILE
    if expert == 0:
        tl.store(tasks, tl.sum(tiles, 0))
    place = tl.sum(tl.where(bins < expert, counts, 0), 0)
    own = tl.sum(tl.where(bins == expert, counts, 0), 0)
    task = tasks + 1 + TASK_WORDS * tl.sum(tl.where(bins < expert, tiles, 0), 0)
    for first in range(0, own, TILE):
        tl.store(task, expert)
        tl.store(task + 1, place + first)
        tl.store(task + 2, tl.minimum(own - first, TILE))
        task += TASK_WORDS
    if own > 0:
        for start in range(0, pairs, BLOCK):
            chosen, inside = _chosen(ids, start, pairs, BLOCK)
            is_own = inside & (chosen == expert)
            rank = tl.cumsum(is_own.to(tl.int32), 0)
            tl.store(order + place + rank - 1, start + tl.arange(0, BLOCK), mask=is_own)
            place += tl.sum(is_own.to(tl.int32), 0)


@triton.jit
def _chosen(ids, start, pairs, BLOCK: tl.constexpr):
    """Return the experts of some pairs, and which of them exist."""
    pair = start + tl.arange(0, BLOCK)
    chosen = tl.load(ids + pair, mask=pair < pairs, other=-1)
    inside = (chosen >= 0) & (chosen < tl.num_programs(0))
    return tl.where(inside, chosen, 0).to(tl.int32), inside


@triton.jit
def expert_gate_up_kernel(
    x,  # [rows, hidden]; bytes for int8 and fp8
    row_scales,  # float32 [rows], read for int8 and fp8
    gate,  # [experts, hidden, size]; int4: two numbers a byte; fp8: [experts, size, hidden]
    gate_scales,  # int4: [experts, hidden / 32, size]; int8 and fp8: [experts, size]
    up,
    up_scales,
    tasks,
    order,
    inner,  # [pairs, size], in the order of the tasks; float32 for int8 and fp8
    experts_per_row,
    hidden,
    size,
    is_gelu,  # 0 or 1: as in activated
    KIND: tl.constexpr,  # "float", "int4", "int8", "fp8" or "fp8_bits"
    TILE: tl.constexpr,  # pairs of a task
    COLUMNS: tl.constexpr,  # outputs of an item of work, which is a part of a task
    STEP: tl.constexpr,  # inputs per step
):
    """Compute activated(x @ gate) * (x @ up) of items p, p + programs, ... The launch grid is (programs)."""
    parts = tl.cdiv(size, COLUMNS)
    for item in range(tl.program_id(0), tl.load(tasks) * parts, tl.num_programs(0)):
        expert, place, real = _task(tasks, item // parts, TILE)
        row = tl.load(order + place, mask=real, other=0) // experts_per_row
        column = item % parts * COLUMNS
        g = tl.zeros([TILE, COLUMNS], tl.float32)
        u = tl.zeros([TILE, COLUMNS], tl.float32)
        for start in range(0, hidden, STEP):
            some = _rows(x, row, real, start, hidden, KIND, STEP)
            g = _added(g, some, gate, gate_scales, expert, start, column, hidden, size, KIND)
            u = _added(u, some, up, up_scales, expert, start, column, hidden, size, KIND)
        g = _scaled(g, row_scales, row, real, gate_scales, expert, column, size, KIND)
        u = _scaled(u, row_scales, row, real, up_scales, expert, column, size, KIND)
        narrow: tl.constexpr = inner.dtype.element_ty
        g = g.to(narrow).to(tl.float32)
        active = activated(g, is_gelu).to(narrow).to(tl.float32)
        _store(inner, place, real, column, size, (active * u.to(narrow).to(tl.float32)).to(narrow))


@triton.jit
def expert_down_kernel(
    inner,  # [pairs, size], in the order of the tasks; bytes for int8 and fp8
    inner_scales,  # float32 [pairs], likewise; read for int8 and fp8
    weights,  # float32 [pairs]
    down,  # [experts, size, hidden], like the matrices of expert_gate_up_kernel
    down_scales,
    tasks,
    order,
    outputs,  # float32 [pairs, hidden]
    size,
    hidden,
    KIND: tl.constexpr,
    TILE: tl.constexpr,
    COLUMNS: tl.constexpr,
    STEP: tl.constexpr,
):
    """Compute weight * (inner @ down) of items p, p + programs, ... The launch grid is (programs)."""
    parts = tl.cdiv(hidden, COLUMNS)
    for item in range(tl.program_id(0), tl.load(tasks) * parts, tl.num_programs(0)):
        expert, place, real = _task(tasks, item // parts, TILE)
        column = item % parts * COLUMNS
        sums = tl.zeros([TILE, COLUMNS], tl.float32)
        for start in range(0, size, STEP):
            some = _rows(inner, place, real, start, size, KIND, STEP)
            sums = _added(sums, some, down, down_scales, expert, start, column, size, hidden, KIND)
        sums = _scaled(sums, inner_scales, place, real, down_scales, expert, column, hidden, KIND)
        if KIND == "float" or KIND == "int4":
            sums = sums.to(inner.dtype.element_ty).to(tl.float32)
        pair = tl.load(order + place, mask=real, other=0)
        _store(outputs, pair, real, column, hidden, sums * tl.load(weights + pair, mask=real, other=0.0)[:, None])


@triton.jit
def _task(tasks, number, TILE: tl.constexpr):
    """Return the expert of a task, the places of its pairs, and which of them exist."""
    task = tasks + 1 + TASK_WORDS * number
    pair = tl.arange(0, TILE)
    return tl.load(task).to(tl.int64), tl.load(task + 1) + pair, pair < tl.load(task + 2)


@triton.jit
def _rows(x, row, real, start, inputs, KIND: tl.constexpr, STEP: tl.constexpr):
    """Return inputs of rows [TILE, STEP]."""
    place = start + tl.arange(0, STEP)
    offsets = row.to(tl.int64)[:, None] * inputs + place[None, :]
    some = tl.load(x + offsets, mask=real[:, None] & (place < inputs)[None, :], other=0)
    return some if KIND == "float" or KIND == "int4" else _half(some, KIND)


@triton.jit
def _half(stored, KIND: tl.constexpr):
    """Return bytes of int8 or e4m3 as float16. GPUs before 8.9 do not convert e4m3: their kind is fp8_bits.

    float16 has the bits of e4m3 for a number that is 2**8 times smaller. So NaN becomes 480: its row's scale is NaN.
    """
    if KIND == "fp8":
        return stored.to(tl.float8e4nv, bitcast=True).to(tl.float16)
    if KIND == "fp8_bits":
        bits = stored.to(tl.int16)
        return (((bits & 0x80) << 8) | ((bits & 0x7F) << 7)).to(tl.float16, bitcast=True) * 256.0
    return stored.to(tl.float16)


@triton.jit
def _added(sums, some, matrix, scales, expert, start, column, inputs, outputs, KIND: tl.constexpr):
    """Return sums plus the product of `some` [TILE, STEP] with a part of an expert's matrix.

    int4 numbers are multiplied by their scales. The scales of int8 and fp8 follow the sums.
    """
    place = start + tl.arange(0, some.shape[1])
    columns = column + tl.arange(0, sums.shape[1])
    if KIND == "int4":
        byte = column // 2 + tl.arange(0, sums.shape[1] // 2)
        matrix += expert * inputs * (outputs // 2)
        inside = (place < inputs)[:, None] & (byte < outputs // 2)[None, :]
        packed = tl.load(matrix + place[:, None] * (outputs // 2) + byte[None, :], mask=inside, other=0)
        scales += (expert * inputs + start) // some.shape[1] * outputs
        scale = tl.load(scales + columns, mask=columns < outputs, other=0.0).to(tl.float32)
        # With its sign bit inverted, a number is the end of 2**23 + 8 + number, or of 2**19 + 8 + number.
        bits = packed.to(tl.int32)
        low = ((bits & 0xF) ^ 0x4B000008).to(tl.float32, bitcast=True) - 8388616.0
        high = ((bits & 0xF0) ^ 0x49000080).to(tl.float32, bitcast=True) - 524296.0
        tile = (tl.interleave(low, high) * scale[None, :]).to(some.dtype)
    elif KIND == "fp8" or KIND == "fp8_bits":
        matrix += expert * inputs * outputs
        inside = (columns < outputs)[:, None] & (place < inputs)[None, :]
        tile = tl.load(matrix + columns[:, None] * inputs + place[None, :], mask=inside, other=0)
        tile = tl.trans(_half(tile, KIND))
    else:
        matrix += expert * inputs * outputs
        inside = (place < inputs)[:, None] & (columns < outputs)[None, :]
        tile = tl.load(matrix + place[:, None] * outputs + columns[None, :], mask=inside, other=0).to(some.dtype)
    return tl.dot(some, tile, sums, input_precision="ieee")


@triton.jit
def _scaled(sums, row_scales, row, real, scales, expert, column, outputs, KIND: tl.constexpr):
    """Return sums times the scales of rows and columns, which int8 and fp8 matrices have."""
    if KIND != "float" and KIND != "int4":
        columns = column + tl.arange(0, sums.shape[1])
        of_columns = tl.load(scales + expert * outputs + columns, mask=columns < outputs, other=0.0)
        sums = sums * of_columns[None, :] * tl.load(row_scales + row, mask=real, other=0.0)[:, None]
    return sums


@triton.jit
def _store(target, row, real, column, size, numbers):
    """Store a part [TILE, COLUMNS] of rows."""
    columns = column + tl.arange(0, numbers.shape[1])
    offsets = row.to(tl.int64)[:, None] * size + columns[None, :]
    tl.store(target + offsets, numbers, mask=real[:, None] & (columns < size)[None, :])


@triton.jit
def expert_sum_kernel(
    outputs,  # float32 [rows, experts_per_row, size]
    total,  # [rows, size]
    experts_per_row,
    size,
    BLOCK: tl.constexpr,
):
    """Add up the outputs of a row in their order. The launch grid is (rows, size / BLOCK rounded up)."""
    row = tl.program_id(0).to(tl.int64)
    channel = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    first = outputs + row * experts_per_row * size + channel
    whole = tl.zeros([BLOCK], tl.float32)
    for _ in range(experts_per_row):
        whole += tl.load(first, mask=channel < size, other=0.0)
        first += size
    tl.store(total + row * size + channel, whole.to(total.dtype.element_ty), mask=channel < size)
