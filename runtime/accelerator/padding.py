"""A forward padded to the shape of a gear, and its answer cut back. Pure; knows arrays only.

Padding is inert. A padding row sees itself alone and no real row sees it; a padding branch is made of such rows, and so
is a padding request, which has no committed prefix row either. What padding computes is cut off.
"""

from collections.abc import Iterable, Iterator
from itertools import product
from typing import Any

import numpy as np
import numpy.typing as npt

from lopa.runtime.bundle.gears import Gear
from lopa.runtime.contract import Rows, Sizes, Statistics, WindowBatch
from lopa.runtime.contract.branch_shares import part_of_batch

Part = tuple[slice, slice]
"""Some requests and some branches of each."""


def parts_of_forward(sizes: Sizes, gear: Gear) -> Iterator[Part]:
    """The parts of `sizes` that fit `gear` one by one; as many as gear.forwards."""
    requests = range(0, sizes.requests, gear.requests)
    branches = range(0, sizes.branches, gear.branches)
    for request, branch in product(requests, branches):
        yield (
            slice(request, min(request + gear.requests, sizes.requests)),
            slice(branch, min(branch + gear.branches, sizes.branches)),
        )


def batch_of_part(batch: WindowBatch, part: Part) -> WindowBatch:
    """The windows of some branches of some requests."""
    requests, branches = part
    some = part_of_batch(batch, branches)
    return WindowBatch(
        requests=some.requests[requests],
        input_ids=some.input_ids[requests],
        position_ids=some.position_ids[requests],
        window_mask=some.window_mask[requests],
        logits_index=some.logits_index[requests],
        temperature=some.temperature[requests],
    )


def padded_batch(batch: WindowBatch, gear: Gear) -> WindowBatch:
    """`batch`, which fits `gear`, in the gear's shape. Padding requests have negative numbers of their own."""
    requests, branches, width = batch.input_ids.shape
    rows = (gear.requests, gear.branches, gear.window)
    input_ids = np.zeros(rows, np.int64)
    input_ids[:requests, :branches, :width] = batch.input_ids
    position_ids = np.zeros(rows, np.int64)
    position_ids[:requests, :branches, :width] = batch.position_ids
    window_mask = np.zeros((*rows, gear.window), np.bool_)
    window_mask[..., np.arange(gear.window), np.arange(gear.window)] = True
    window_mask[:requests, :branches, :width, :width] = batch.window_mask
    logits_index = np.zeros((gear.requests, gear.branches, gear.wanted), np.int64)
    logits_index[:requests, :branches, : batch.logits_index.shape[2]] = batch.logits_index
    temperature = np.ones(gear.requests, np.float32)
    temperature[:requests] = batch.temperature
    unused = min(0, *batch.requests) - 1
    return WindowBatch(
        requests=(*batch.requests, *range(unused, unused - (gear.requests - requests), -1)),
        input_ids=input_ids,
        position_ids=position_ids,
        window_mask=window_mask,
        logits_index=logits_index,
        temperature=temperature,
    )


def cut_statistics(statistics: Statistics, sizes: Sizes) -> Statistics:
    """The statistics of the real requests, branches and wanted rows."""
    real = np.s_[: sizes.requests, : sizes.branches, : sizes.wanted]
    return Statistics(
        topk_ids=statistics.topk_ids[real],
        topk_logprobs=statistics.topk_logprobs[real],
        entropy=statistics.entropy[real],
        logits=None if statistics.logits is None else statistics.logits[real],
    )


def cut_rows(rows: tuple[Rows, ...], sizes: Sizes) -> tuple[Rows, ...]:
    """Views of the new rows [R, B, Hkv, W, D] of the real requests, branches and window rows."""
    return tuple(array[: sizes.requests, : sizes.branches, :, : sizes.window] for array in rows)


def joined_answers(
    sizes: Sizes, answers: Iterable[tuple[Part, Statistics, tuple[Rows, ...]]]
) -> tuple[Statistics, tuple[Rows, ...]]:
    """The answers of all parts of a forward as one.

    Each is copied before the next is asked for, which may overwrite it.
    """
    whole: list[npt.NDArray[Any]] = []
    for part, statistics, rows in answers:
        logits = () if statistics.logits is None else (statistics.logits,)
        arrays = (statistics.topk_ids, statistics.topk_logprobs, statistics.entropy, *rows, *logits)
        if not whole:
            whole = [np.empty((sizes.requests, sizes.branches, *array.shape[2:]), array.dtype) for array in arrays]
        for target, array in zip(whole, arrays, strict=True):
            target[part] = array
    topk_ids, topk_logprobs, entropy, *others = whole
    statistics = Statistics(topk_ids, topk_logprobs, entropy, logits=others[len(rows)] if logits else None)
    return statistics, tuple(others[: len(rows)])
