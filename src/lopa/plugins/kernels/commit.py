"""Launcher of the commit kernel for torch tensors, and its table of addresses."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
import triton
import triton.language as tl

from lopa.plugins.kernels.commit_kernel import commit_kernel
from lopa.plugins.launch_sizes import COMMIT_ROWS

_WORDS = {2: tl.int16, 4: tl.int32}


@dataclass(frozen=True, eq=False)
class CommitTable:
    """Arrays whose rows are committed together. The table is valid until one of them is moved or freed."""

    windows: Sequence[torch.Tensor]
    """Key and value rows of every layer, each [R, B, Hkv, W, D], contiguous."""
    caches: Sequence[torch.Tensor]
    """Caches in the same order, each [slots, Hkv, P, D], contiguous, of the same type."""
    addresses: torch.Tensor
    """Addresses of each window array and its cache, int64 [arrays, 2], on their device."""


def commit_table(windows: Sequence[torch.Tensor], caches: Sequence[torch.Tensor]) -> CommitTable:
    """Return the table. Raises ValueError unless windows share a shape, caches share a shape, and both match."""
    window, cache = windows[0], caches[0]
    shapes = {tensor.shape for tensor in windows}, {tensor.shape for tensor in caches}
    types = {tensor.dtype for tensor in (*windows, *caches)}
    contiguous = all(tensor.is_contiguous() for tensor in (*windows, *caches))
    fit = window.shape[2] == cache.shape[1] and window.shape[4] == cache.shape[3] and len(windows) == len(caches)
    if [len(shapes[0]), len(shapes[1]), len(types)] != [1, 1, 1] or not fit or not contiguous:
        raise ValueError(
            f"received windows {sorted(map(tuple, shapes[0]))} and caches {sorted(map(tuple, shapes[1]))}, "
            "expected contiguous [R, B, Hkv, W, D] and as many [slots, Hkv, P, D] of the same type"
        )
    if window.element_size() not in _WORDS:
        raise ValueError(f"received rows of {window.dtype}, expected numbers of 2 or 4 bytes")
    pairs = [[rows.data_ptr(), target.data_ptr()] for rows, target in zip(windows, caches, strict=True)]
    return CommitTable(windows, caches, torch.tensor(pairs, dtype=torch.int64, device=window.device))


def commit(table: CommitTable, *, request: int, branch: int, slot: int, offset: int, count: int) -> None:
    """Compute `commit_reference` in one launch. Raises ValueError for rows that do not exist or do not fit."""
    window, cache = table.windows[0], table.caches[0]
    requests, branches, kv_heads, width, size = window.shape
    slots, _, prefix, _ = cache.shape
    inside = 0 <= request < requests and 0 <= branch < branches and 0 <= slot < slots and 0 <= count <= width
    if not inside or not 0 <= offset <= prefix - count:
        raise ValueError(
            f"received request {request}, branch {branch}, slot {slot} and {count} rows at {offset}, "
            f"expected rows of {tuple(window.shape)} that fit into {tuple(cache.shape)}"
        )
    if count == 0:
        return
    commit_kernel[(len(table.windows), kv_heads, triton.cdiv(count, COMMIT_ROWS))](
        table.addresses,
        request * branches + branch,
        slot,
        width,
        prefix,
        offset,
        count,
        WORD=_WORDS[window.element_size()],
        KV_HEADS=kv_heads,
        SIZE=size,
        CHANNELS=triton.next_power_of_2(size),
        ROWS=COMMIT_ROWS,
    )
