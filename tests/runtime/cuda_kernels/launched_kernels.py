"""References of the kernels of lopa.plugins.kernels, in numpy on host memory, from the arguments of their launches.

These are references for the stand-in driver. They are written from the specification of the operators, and share no
code with the kernels or with the host library. A launch with other arguments or another grid than the kernel expects
raises.
"""

import ctypes
import dis
import itertools
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import ml_dtypes
import numpy as np

FP8 = ml_dtypes.float8_e4m3fn
FLOATS: dict[str, Any] = {"fp32": np.float32, "fp16": np.float16}
"""numpy types by the names of kernels. numpy has no bfloat16, and ONNX Runtime's CPU provider multiplies none."""
ROWS_PER_TILE, CHUNK_ROWS = 64, 64
MULTIPROCESSORS = 7
"""Multiprocessors of a device of the stand-in driver."""
_TYPES: dict[str, Any] = {"p": ctypes.c_void_p, "i": ctypes.c_int32, "f": ctypes.c_float}


@dataclass(frozen=True)
class Launch:
    """One launch."""

    x: int
    y: int
    z: int
    constants: tuple[str, ...]
    """Type and constants of the variant, e.g. ("fp32", "128")."""
    arguments: tuple[Any, ...]
    check: Callable[[int, int], Any] = lambda *_: None
    """Function of an address and a size that raises unless this memory is allocated."""
    kernel: str = ""


def array(address: int | None, dtype: Any, *shape: int) -> Any:
    """Return the memory at an address as an array."""
    size = math.prod(shape) * np.dtype(dtype).itemsize
    if size == 0:
        return np.empty(shape, dtype)
    assert address is not None
    assert address % 16 == 0, f"an address that is not a multiple of 16: {address}"
    return np.frombuffer((ctypes.c_char * size).from_address(address), dtype).reshape(shape)


def strided_rows(address: int, dtype: Any, rows: int, stride: int, size: int) -> Any:
    """Return rows of `size` numbers that begin `stride` numbers apart. The last row may end the memory."""
    if rows == 0:
        return np.empty((0, size), dtype)
    flat = array(address, dtype, (rows - 1) * stride + size)
    return np.lib.stride_tricks.as_strided(flat, (rows, size), (stride * flat.itemsize, flat.itemsize))


def programs(kv_heads: int) -> int:
    """Return how many programs share the tasks of a key-value head."""
    return max(1, 2 * MULTIPROCESSORS // kv_heads)


def scaled(product: Any, row_scales: int, column_scales: int) -> Any:
    """Return a product [rows, columns] times its scales, rounded to its type."""
    rows, columns = array(row_scales, np.float32, len(product), 1), array(column_scales, np.float32, product.shape[1])
    return (product.astype(np.float32) * (rows * columns)).astype(product.dtype)


def write_rounded(rows: Any, target: int, scales: int, step: float, factor: float, is_e4m3: int) -> None:
    """Write rows as bytes and their scales times `factor`."""
    rows, most = rows.astype(np.float32), 448 if is_e4m3 else 127
    assert step == np.float32(1 / most)
    assert factor == 1 or 448 * 448 * rows.shape[1] / factor <= 65504  # experts' sums are float32
    own = np.maximum(np.abs(rows).max(-1, keepdims=True), np.float32(1e-30)) * np.float32(step)
    array(scales, np.float32, len(rows), 1)[:] = own * np.float32(factor)
    ratio = (rows / own).clip(-most, most)
    codes = ratio.astype(ml_dtypes.float8_e4m3fn) if is_e4m3 else np.rint(np.nan_to_num(ratio)).astype(np.int8)
    array(target, np.uint8, *rows.shape)[:] = codes.view(np.uint8)


def rms_norm(launch: Launch) -> None:
    (x, delta, weight, row_scales, column_scales, has_scales, normed, total, bytes_of_rows, scales_of_rows, size) = (
        launch.arguments[:11]
    )
    epsilon, step, factor, is_e4m3 = launch.arguments[11:]
    dtype = FLOATS[launch.constants[0]]
    assert launch.y == 1
    assert size % 16 == 0
    rows = array(x, dtype, launch.x, size).astype(np.float32)
    if "skip" in launch.constants:
        added = array(delta, dtype, launch.x, size)
        rows = (rows + (scaled(added, row_scales, column_scales) if has_scales else added)).astype(dtype)
        array(total, dtype, launch.x, size)[:] = rows
        rows = rows.astype(np.float32)
    scale = 1 / np.sqrt(np.mean(np.square(rows), -1, keepdims=True, dtype=np.float32) + np.float32(epsilon))
    result = (rows * scale).astype(dtype) * array(weight, dtype, size)
    if "rounded" in launch.constants:
        write_rounded(result, bytes_of_rows, scales_of_rows, step, factor, is_e4m3)
    else:
        array(normed, dtype, launch.x, size)[:] = result


def round_rows(launch: Launch) -> None:
    x, output, scales, size, step, factor, is_e4m3 = launch.arguments
    write_rounded(array(x, FLOATS[launch.constants[0]], launch.x, size), output, scales, step, factor, is_e4m3)


def scale_rows(launch: Launch) -> None:
    x, row_scales, column_scales, output, size = launch.arguments
    dtype = FLOATS[launch.constants[0]]
    assert launch.y == -(-size // 1024)
    array(output, dtype, launch.x, size)[:] = scaled(array(x, dtype, launch.x, size), row_scales, column_scales)


def store_product(launch: Launch, rows: Any, matrix: Any, output: int, parts: int, each: int) -> None:
    """Write a product in tiles, or its parts."""
    count, outputs = len(rows), matrix.shape[1]
    assert launch.x == -(-outputs // 128)
    assert launch.y == -(-count // int(launch.constants[-1]))
    assert each % 64 == 0
    assert (launch.z - 1) * each < len(matrix) <= launch.z * each
    if launch.z == 1:
        array(output, FLOATS[launch.constants[0]], count, outputs)[:] = rows @ matrix
        return
    for number, part in enumerate(array(parts, np.float32, launch.z, count, outputs)):
        part[:] = rows[:, number * each :][:, :each] @ matrix[number * each :][:each]


def int4_product(launch: Launch) -> None:
    x, weight, scales, output, parts, rows, inputs, outputs, inputs_per_part = launch.arguments
    dtype = FLOATS[launch.constants[0]]
    assert outputs % 16 == 0
    codes = array(weight, np.uint8, inputs, outputs // 2)
    integers = (np.stack([codes & 15, codes >> 4], -1).reshape(inputs, outputs) ^ 8).astype(np.float32) - 8
    blocks = array(scales, dtype, inputs // 32, outputs).astype(np.float32)
    matrix = (integers * blocks.repeat(32, 0)).astype(dtype).astype(np.float32)
    store_product(launch, array(x, dtype, rows, inputs).astype(np.float32), matrix, output, parts, inputs_per_part)


def rounded_product(launch: Launch) -> None:
    x, weight, output, parts, rows, inputs, outputs, inputs_per_part, factor = launch.arguments
    assert inputs % 16 == outputs % 16 == 0
    assert 448 * 448 * inputs * factor <= 65504
    if "e4m3" in launch.constants:
        matrix, dtype = array(weight, ml_dtypes.float8_e4m3fn, outputs, inputs).T, np.dtype(ml_dtypes.float8_e4m3fn)
    else:
        matrix, dtype = array(weight, np.int8, inputs, outputs), np.dtype(np.int8)
    wide = array(x, dtype, rows, inputs).astype(np.float32) * np.float32(factor)
    store_product(launch, wide, matrix.astype(np.float32), output, parts, inputs_per_part)


def product_merge(launch: Launch) -> None:
    parts, output, count, numbers = launch.arguments
    assert count > 1
    assert launch.x == -(-numbers // 1024)
    array(output, FLOATS[launch.constants[0]], numbers)[:] = array(parts, np.float32, count, numbers).sum(0)


def split_rotary(launch: Launch) -> None:
    query_in, key_in, value_in, query_stride, key_stride, row_scales, column_scales, has_scales = launch.arguments[:8]
    bias, has_bias, query_norm, key_norm, cos, sin = launch.arguments[8:14]
    query, key, value, heads, kv_heads, value_head, size, width, rotated, normalizes_values, epsilon = launch.arguments[
        14:
    ]
    dtype, rows = FLOATS[launch.constants[0]], launch.x
    assert launch.y == heads + 2 * kv_heads
    assert rotated % 2 == 0
    assert int(launch.constants[-1]) >= size
    assert size % 16 == 0
    parts = [
        strided_rows(query_in, dtype, rows, query_stride, heads * size),
        strided_rows(key_in, dtype, rows, key_stride, kv_heads * size),
        strided_rows(value_in, dtype, rows, key_stride, kv_heads * size),
    ]
    assert value_head in (heads, heads + kv_heads)
    every = np.concatenate(parts[: 3 if value_head > heads else 2], 1)
    every = scaled(every, row_scales, column_scales) if has_scales else every
    if has_bias:
        every = (every.astype(np.float32) + array(bias, dtype, every.shape[1])).astype(dtype)
    every = every.reshape(rows, -1, size)[:, [*range(heads + kv_heads), *range(value_head, value_head + kv_heads)]]
    if "norm" in launch.constants:
        norms = [query_norm] * heads + [key_norm] * kv_heads + [None] * (kv_heads * normalizes_values)
        for head, weight in enumerate(norms):
            numbers = every[:, head].astype(np.float32)
            scale = 1 / np.sqrt(np.mean(np.square(numbers), -1, keepdims=True, dtype=np.float32) + np.float32(epsilon))
            every[:, head] = (numbers * scale).astype(dtype) * (1 if weight is None else array(weight, dtype, size))
    half = rotated // 2
    cosines = array(cos, dtype, rows, 1, half).astype(np.float32)
    sines = array(sin, dtype, rows, 1, half).astype(np.float32)
    turned = every[:, : heads + kv_heads, :rotated].astype(np.float32)
    one, other = turned[..., :half], turned[..., half:]
    every[:, : heads + kv_heads, :rotated] = np.concatenate(
        [one * cosines - other * sines, other * cosines + one * sines], -1
    ).astype(dtype)
    array(query, dtype, rows, heads, size)[:] = every[:, :heads]
    for target, begin in ((key, heads), (value, heads + kv_heads)):
        flat = every[:, begin : begin + kv_heads].reshape(rows, -1)
        array(target, dtype, rows, width)[:] = np.pad(flat, ((0, 0), (0, width - flat.shape[1])))


def words(work: int, number: int, *shape: int) -> Any:
    """Return list `number` of the attention's work: rows, tasks, merges, chunks or mask."""
    place, size = int(array(work, np.int32, 8)[2 + number]), int(np.prod(shape))
    return array(work, np.int32, place + size)[place:].reshape(shape)


def branch_attention(launch: Launch) -> None:
    query, key, value, cache, work, output, scratch, heads, kv_heads, size = launch.arguments[:10]
    width, cache_row, cache_head, layer, scale = launch.arguments[10:]
    dtype, group = FLOATS[launch.constants[0]], heads // kv_heads
    is_sliding = "sliding" in launch.constants
    work += 4 * int(array(work, np.int32, 8)[7]) * is_sliding
    assert (cache_row, cache_head) in ((size, CHUNK_ROWS * size), (width, size))
    assert launch.y == kv_heads
    assert launch.x == programs(kv_heads)
    assert group <= ROWS_PER_TILE
    assert int(launch.constants[-1]) >= size
    assert size % 16 == 0
    tasks = words(work, 1, int(array(work, np.int32, 8)[0]), 8)
    end = int((tasks[:, 0] + abs(tasks[:, 1])).max(initial=0))
    last_chunks = tasks[:, 6] + -(-tasks[:, 3] // CHUNK_ROWS)
    chunks = words(work, 3, int(last_chunks.max(initial=0)), 2).reshape(-1).view(np.int64)
    rows = words(work, 0, end, 4)
    mask = words(work, 4, -(-int((rows[:, 1] + rows[:, 2]).max(initial=0)) // 4)).view(np.bool_)
    queries = array(query, dtype, end, kv_heads, group, size).astype(np.float32)
    new = [
        array(each, dtype, end, width)[:, : kv_heads * size].reshape(end, kv_heads, size).astype(np.float32)
        for each in (key, value)
    ]
    answers = array(output, dtype, end, kv_heads, group, size)
    count = int(tasks[tasks[:, 1] < 0, 7].max(initial=-1)) + 1
    parts = array(scratch, np.float32, count, kv_heads, ROWS_PER_TILE, size + 2)
    elements = 2 * CHUNK_ROWS * width
    for first, given, begin, stop, own_begin, own_end, chunk, part in tasks.tolist():
        tile, cached = abs(given), stop - begin
        assert 0 < tile * group <= ROWS_PER_TILE
        assert begin % CHUNK_ROWS == 0
        seen = np.zeros((tile, cached + own_end - own_begin), np.bool_)
        seen[:, :cached] = True
        for index, (window, length, line, start) in enumerate(rows[first : first + tile].tolist()):
            low, high = max(own_begin, window), min(own_end, window + length)
            if is_sliding:
                seen[index, : max(0, min(start, stop) - begin)] = False
            if low < high:
                seen[index, cached + low - own_begin : cached + high - own_begin] = mask[line:][
                    low - window : high - window
                ]
        blocks = [np.empty((2, kv_heads, 0, size), dtype)]
        for number in range(begin // CHUNK_ROWS, -(-stop // CHUNK_ROWS)):
            address = cache + np.dtype(dtype).itemsize * (int(chunks[chunk + number]) + layer * elements)
            launch.check(address, np.dtype(dtype).itemsize * elements)
            kept = array(address, dtype, elements)
            steps = [each * kept.itemsize for each in (elements // 2, cache_head, cache_row, 1)]
            strided = np.lib.stride_tricks.as_strided(kept, (2, kv_heads, CHUNK_ROWS, size), steps)
            blocks.append(strided.astype(np.float32, order="C"))
        past = np.concatenate(blocks, 2, dtype=np.float32)[:, :, :cached]
        keys, values = (
            np.concatenate([old, rows_of_window[own_begin:own_end].swapaxes(0, 1)], 1)
            for old, rows_of_window in zip(past, new, strict=True)
        )
        pairs = queries[first : first + tile].swapaxes(0, 1).reshape(kv_heads, tile * group, size)
        scores = np.where(seen.repeat(group, 0), pairs @ keys.swapaxes(1, 2) * np.float32(scale), -np.inf)
        largest = scores.max(-1, keepdims=True, initial=-np.inf)
        weights = np.exp(scores - np.where(np.isinf(largest), 0, largest))
        total = weights.sum(-1, keepdims=True)
        mixed = weights @ values
        if given < 0:
            parts[part, :, : tile * group] = np.concatenate([mixed, largest, total], -1)
        else:
            attended = (mixed / np.where(total > 0, total, 1)).astype(dtype)
            answers[first : first + tile] = attended.reshape(kv_heads, tile, group, size).swapaxes(0, 1)


def attention_merge(launch: Launch) -> None:
    scratch, work, output, heads, kv_heads, size, is_sliding = launch.arguments
    dtype, group = FLOATS[launch.constants[0]], heads // kv_heads
    work += 4 * int(array(work, np.int32, 8)[7]) * is_sliding
    assert launch.y == kv_heads
    assert launch.x == programs(kv_heads)
    assert launch.z == ROWS_PER_TILE // 16
    merges = words(work, 2, int(array(work, np.int32, 8)[1]), 4)
    parts = array(
        scratch, np.float32, int((merges[:, 2] + merges[:, 3]).max(initial=0)), kv_heads, ROWS_PER_TILE, size + 2
    )
    answers = array(output, dtype, int((merges[:, 0] + merges[:, 1]).max(initial=0)), kv_heads, group, size)
    for first, tile, place, count in merges.tolist():
        found = parts[place : place + count, :, : tile * group]
        largest = found[..., size].max(0)
        factors = np.exp(found[..., size] - np.where(np.isinf(largest), 0, largest))
        total = (found[..., size + 1] * factors).sum(0)
        mixed = (found[..., :size] * factors[..., None]).sum(0) / np.where(total > 0, total, 1)[..., None]
        answers[first : first + tile] = mixed.reshape(kv_heads, tile, group, size).swapaxes(0, 1)


def gated(
    rows: int, dtype: Any, gate: int, up: int, scales: tuple[int, ...], stride: int, size: int, is_gelu: int
) -> Any:
    """Return activated(gate) * up."""
    assert size <= stride
    assert stride % 16 == size % 16 == 0
    both = np.concatenate([strided_rows(each, dtype, rows, stride, size) for each in (gate, up)], 1)
    gates, factors = np.split(scaled(both, *scales) if scales else both, 2, 1)
    return activated(gates.astype(np.float32), is_gelu).astype(dtype) * factors


def activated(x: Any, is_gelu: int) -> Any:
    """Return silu(x), or gelu(x) by tanh."""
    if is_gelu:
        return x / 2 * (1 + np.tanh(np.float32(np.sqrt(2 / np.pi)) * (x + np.float32(0.044715) * x**3)))
    with np.errstate(over="ignore"):
        return x / (1 + np.exp(-x))


def swiglu(launch: Launch) -> None:
    gate, up, row_scales, column_scales, has_scales, output, stride, size, is_gelu = launch.arguments
    dtype, scales = FLOATS[launch.constants[0]], (row_scales, column_scales) if has_scales else ()
    assert -(-size // 1024) == launch.y
    array(output, dtype, launch.x, size)[:] = gated(launch.x, dtype, gate, up, scales, stride, size, is_gelu)


def rounded_swiglu(launch: Launch) -> None:
    gate, up, row_scales, column_scales, has_scales, output, scales, stride, size = launch.arguments[:9]
    step, factor, is_e4m3, is_gelu = launch.arguments[9:]
    own = (row_scales, column_scales) if has_scales else ()
    product = gated(launch.x, FLOATS[launch.constants[0]], gate, up, own, stride, size, is_gelu)
    write_rounded(product, output, scales, step, factor, is_e4m3)


def statistics_partials(launch: Launch) -> None:
    logits, temperature, rows_per_temperature, vocabulary, columns_per_split = launch.arguments[:5]
    greatest_of_splits, total_of_splits, weighted_of_splits, ids, values = launch.arguments[5:]
    dtype, top = FLOATS[launch.constants[0]], int(launch.constants[1])
    rows, splits = launch.x, launch.y
    assert (splits - 1) * columns_per_split < vocabulary <= splits * columns_per_split
    assert rows % rows_per_temperature == 0
    divisors = array(temperature, np.float32, rows // rows_per_temperature).repeat(rows_per_temperature)[:, None]
    numbers = array(logits, dtype, rows, vocabulary).astype(np.float32) / divisors
    greatest, total, weighted = (
        array(each, np.float32, rows, splits) for each in (greatest_of_splits, total_of_splits, weighted_of_splits)
    )
    found, best = array(ids, np.int32, rows, splits, top), array(values, np.float32, rows, splits, top)
    for split in range(splits):
        part = numbers[:, split * columns_per_split : (split + 1) * columns_per_split]
        peak = part.max(-1, keepdims=True)
        weights = np.exp(part - peak)
        greatest[:, split], total[:, split] = peak[:, 0], weights.sum(-1)
        weighted[:, split] = (weights * (part - peak)).sum(-1)
        order = np.argsort(-part, axis=-1, kind="stable")[:, :top]
        found[:, split] = -1
        found[:, split, : order.shape[1]] = order + split * columns_per_split
        best[:, split] = -np.inf
        best[:, split, : order.shape[1]] = np.take_along_axis(part, order, -1)


def statistics_merge(launch: Launch) -> None:
    greatest_of_splits, total_of_splits, weighted_of_splits, ids, values, splits = launch.arguments[:6]
    topk_ids, topk_logprobs, entropy = launch.arguments[6:]
    rows, top = launch.x, int(launch.constants[0])
    assert launch.y == 1
    assert 1 <= splits <= 32
    peaks, totals, sums = (
        array(each, np.float32, rows, splits) for each in (greatest_of_splits, total_of_splits, weighted_of_splits)
    )
    peak = peaks.max(-1, keepdims=True)
    factors = np.exp(peaks - peak)
    whole = (totals * factors).sum(-1)
    mean = ((sums + totals * (peaks - peak)) * factors).sum(-1) / whole
    array(entropy, np.float32, rows)[:] = np.log(whole) - mean
    found = array(ids, np.int32, rows, splits * top)
    logits = np.where(found < 0, -np.inf, array(values, np.float32, rows, splits * top))
    order = np.lexsort((found, -logits), axis=-1)[:, :top]
    array(topk_ids, np.int64, rows, top)[:] = np.take_along_axis(found, order, -1)
    array(topk_logprobs, np.float32, rows, top)[:] = (
        np.take_along_axis(logits, order, -1) - peak - np.log(whole)[:, None]
    )


def tasks_of(tasks: int, order: int) -> tuple[int, list[tuple[int, Any, Any]]]:
    """Return the number of pairs, and the expert, the places and the pairs of each task."""
    count = int(array(tasks, np.int32, 1)[0])
    found = array(tasks, np.int32, 1 + 3 * count)[1:].reshape(count, 3)
    pairs = int(found[:, 2].sum())
    sorted_pairs = array(order, np.int32, pairs)
    assert sorted(sorted_pairs.tolist()) == list(range(pairs))
    places = [np.arange(first, first + some) for _, first, some in found.tolist()]
    return pairs, [(int(task[0]), each, sorted_pairs[each]) for task, each in zip(found, places, strict=True)]


def expert_tasks(launch: Launch) -> None:
    ids, tasks, order, pairs = launch.arguments
    chosen, experts = array(ids, np.int64, pairs), launch.x
    assert launch.y == 1
    assert 0 <= chosen.min() <= chosen.max() < experts
    array(order, np.int32, pairs)[:] = np.argsort(chosen, kind="stable")
    counts = np.bincount(chosen, minlength=experts)
    ends = np.cumsum(counts)
    found = [
        (expert, first, min(32, int(ends[expert]) - first))
        for expert in range(experts)
        for first in range(int(ends[expert] - counts[expert]), int(ends[expert]), 32)
    ]
    array(tasks, np.int32, 1 + 3 * len(found))[:] = [len(found), *itertools.chain(*found)]


def expert_product(launch: Launch, rows: Any, of_rows: Any, expert: int, stored: int, scales: int, outputs: int) -> Any:
    """Return the product of rows with the matrix of an expert, in float32. `of_rows` are the scales of rounded rows."""
    kind, count, inputs = launch.constants[0], expert + 1, rows.shape[1]
    if launch.kernel.endswith("_int4"):
        packed = array(stored, np.int8, count, inputs, outputs // 2)[expert]
        integers = np.stack([packed << 4 >> 4, packed >> 4], -1).reshape(inputs, outputs).astype(np.float32)
        factors = array(scales, FLOATS[kind], count, inputs // 32, outputs)[expert].repeat(32, 0)
        return (rows @ (integers * factors).astype(FLOATS[kind]).astype(np.float32)).astype(FLOATS[kind])
    if kind in FLOATS:
        matrix = array(stored, FLOATS[kind], count, inputs, outputs)[expert]
        return (rows @ matrix.astype(np.float32)).astype(FLOATS[kind])
    matrix = array(stored, FP8, count, outputs, inputs)[expert].T
    if kind == "int8":
        matrix = array(stored, np.int8, count, inputs, outputs)[expert]
    return rows @ matrix.astype(np.float32) * array(scales, np.float32, count, outputs)[expert] * of_rows[:, None]


def expert_gate_up(launch: Launch) -> None:
    x, row_scales, gate, gate_scales, up, up_scales, tasks, order = launch.arguments[:8]
    inner, experts_per_row, hidden, size, is_gelu, of_x, rounded = *launch.arguments[8:], *expert_types(launch)
    pairs, tasks_found = tasks_of(tasks, order)
    rows = array(x, of_x, pairs // experts_per_row, hidden).astype(np.float32)
    of_rows = array(row_scales, np.float32, len(rows))
    for expert, places, chosen in tasks_found:
        row = chosen // experts_per_row
        g, u = (
            expert_product(launch, rows[row], of_rows[row], expert, stored, scales, size)
            for stored, scales in ((gate, gate_scales), (up, up_scales))
        )
        array(inner, rounded, pairs, size)[places] = activated(g.astype(np.float32), is_gelu).astype(rounded) * u


def expert_down(launch: Launch) -> None:
    inner, inner_scales, weights, down, down_scales, tasks, order, outputs, size, hidden = launch.arguments
    pairs, tasks_found = tasks_of(tasks, order)
    rows = array(inner, expert_types(launch)[0], pairs, size).astype(np.float32)
    of_rows, factors = array(inner_scales, np.float32, pairs), array(weights, np.float32, pairs, 1)
    for expert, places, chosen in tasks_found:
        product = expert_product(launch, rows[places], of_rows[places], expert, down, down_scales, hidden)
        array(outputs, np.float32, pairs, hidden)[chosen] = product.astype(np.float32) * factors[chosen]


def expert_types(launch: Launch) -> tuple[Any, Any]:
    """Return the types of the rows of an experts' product and of what is computed from them."""
    assert (launch.x, launch.y) == (2 * MULTIPROCESSORS, 1)
    kind = launch.constants[0]
    return (FP8 if kind == "fp8" else np.int8, np.float32) if kind not in FLOATS else (FLOATS[kind],) * 2


def expert_sum(launch: Launch) -> None:
    outputs, total, experts_per_row, size = launch.arguments
    assert launch.y == -(-size // 1024)
    dtype = FLOATS[launch.constants[0]]
    array(total, dtype, launch.x, size)[:] = array(outputs, np.float32, launch.x, experts_per_row, size).sum(1)


def commit(launch: Launch) -> None:
    raise NotImplementedError(f"rows of caches are copied by the stand-in driver: {launch}")


KERNELS: dict[str, tuple[str, Callable[[Launch], None]]] = {
    "rms_norm": ("pppppi" + "ppppifffi", rms_norm),
    "split_rotary": ("pppiippi" + "pippppppp" + "iiiiiiif", split_rotary),
    "branch_attention": ("ppppppp" + "iiiiiii" + "f", branch_attention),
    "attention_merge": ("pppiiii", attention_merge),
    "swiglu": ("ppppipiii", swiglu),
    "rounded_swiglu": ("ppppi" + "ppiiffii", rounded_swiglu),
    "round_rows": ("pppiffi", round_rows),
    "scale_rows": ("ppppi", scale_rows),
    "int4_product": ("pppppiiii", int4_product),
    "rounded_product": ("ppppiiiif", rounded_product),
    "product_merge": ("ppii", product_merge),
    "statistics_partials": ("ppiii" + "ppppp", statistics_partials),
    "statistics_merge": ("pppppippp", statistics_merge),
    "commit": ("piiiiiiii", commit),
    "expert_tasks": ("pppi", expert_tasks),
    **{f"expert_gate_up{kind}": ("ppppppppp" + "iiii", expert_gate_up) for kind in ("", "_int4", "_rounded")},
    **{f"expert_down{kind}": ("pppppppp" + "ii", expert_down) for kind in ("", "_int4", "_rounded")},
    "expert_sum": ("ppii", expert_sum),
}
"""Types of each kernel's arguments (pointer, int32, float32), and its reference."""


def launch_of_addresses(
    variant: str, grid: tuple[int, int, int], addresses: Any, check: Callable[[int, int], Any]
) -> Launch:
    """Return the launch of a variant whose arguments are at `addresses`."""
    name, *constants = variant.split(".")
    types = KERNELS[name][0]
    assert grid[2] == 1 or name in ("attention_merge", "commit", "int4_product", "rounded_product")
    arguments = tuple(
        _TYPES[kind].from_address(address).value for kind, address in zip(types, addresses[: len(types)], strict=True)
    )
    return Launch(*grid, tuple(constants), arguments, check, name)


def unpacked_names(reference: Callable[..., None], kernel: str) -> list[str]:
    """Return how the reference of a kernel names its arguments, in the order in which it unpacks them."""
    stores = (each.argval for each in dis.get_instructions(reference) if each.opname in ("STORE_FAST", "STORE_DEREF"))
    return list(itertools.islice(stores, len(KERNELS[kernel][0])))


def argument_bytes(kernel: str) -> list[int]:
    """Return the bytes of each argument."""
    return [ctypes.sizeof(_TYPES[kind]) for kind in KERNELS[kernel][0]]
