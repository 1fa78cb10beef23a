"""What rank 0 and the serving ranks of an MPI job send each other, as bytes.

A message is a header of fixed size and a payload whose size follows from the header, so one send carries it whole and
nothing is pickled. An answer has no header: its size follows from the question. Machines of one job share a byte order.
Knows arrays and bytes only: no MPI, no session.
"""

import hashlib
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import Any

import numpy as np
import numpy.typing as npt

from lopa.runtime.bundle.manifest import Manifest
from lopa.runtime.bundle.record import json_from_record
from lopa.runtime.contract import TOP_K, CacheRows, Statistics, WindowBatch
from lopa.runtime.sessions.prefix_cache import CacheShape

Bytes = npt.NDArray[np.uint8]
Field = tuple[tuple[int, ...], npt.DTypeLike]
"""Shape and type of an array inside a message."""

FIRST_CAPACITY = 1 << 16
"""Bytes of a serving rank's buffer until a `Capacity` announces a larger one: windows of the tiny model fit."""
HELLO_SIZE = 32
"""Bytes of the first message of every serving rank."""
_LAYOUT = 2
"""Changes with every change to the messages, so that different versions of this file refuse each other."""
_HEADER: Field = ((6,), np.int64)
"""The kind and up to five numbers."""


@dataclass(frozen=True)
class Forward:
    """Run these windows and answer with their statistics."""

    batch: WindowBatch


@dataclass(frozen=True)
class Commit:
    """Append the first `count` rows of the winner to the request's prefix.

    The winner is `branch` of the rank `source`, counted among the branches that this rank computed. With `travels` all
    ranks take part in a broadcast of the rows from there; without, every rank has computed them and takes those of its
    own first branch.
    """

    request: int
    source: int
    branch: int
    count: int
    travels: bool


@dataclass(frozen=True)
class Read:
    """Answer with the first `count` rows of the receiver's own `branch`."""

    request: int
    branch: int
    count: int


@dataclass(frozen=True)
class Shorten:
    """Forget the request's committed rows behind the first `count`."""

    request: int
    count: int


@dataclass(frozen=True)
class Release:
    """Forget the request."""

    request: int


@dataclass(frozen=True)
class Capacity:
    """The next message has up to `size` bytes: make room for it."""

    size: int


@dataclass(frozen=True)
class Stop:
    """The job is done."""


Message = Forward | Commit | Read | Shorten | Release | Capacity | Stop


class _Kind(IntEnum):
    FORWARD = 1
    COMMIT = 2
    READ = 3
    RELEASE = 4
    CAPACITY = 5
    STOP = 6
    SHORTEN = 7


def bytes_from_message(message: Message) -> Bytes:
    """The whole message in one piece of memory."""
    match message:
        case Forward(batch):
            requests, branches, width = batch.input_ids.shape
            arrays = (
                np.array(batch.requests, np.int64),
                batch.input_ids,
                batch.position_ids,
                batch.logits_index,
                batch.temperature,
                np.packbits(batch.window_mask),
            )
            return _joined(_header(_Kind.FORWARD, requests, branches, width, batch.logits_index.shape[-1]), *arrays)
        case Commit(request, source, branch, count, travels):
            return _joined(_header(_Kind.COMMIT, request, source, branch, count, travels))
        case Read(request, branch, count):
            return _joined(_header(_Kind.READ, request, branch, count))
        case Shorten(request, count):
            return _joined(_header(_Kind.SHORTEN, request, count))
        case Release(request):
            return _joined(_header(_Kind.RELEASE, request))
        case Capacity(size):
            return _joined(_header(_Kind.CAPACITY, size))
        case Stop():
            return _joined(_header(_Kind.STOP))


def message_from_bytes(buffer: Bytes) -> Message:
    """The message at the beginning of `buffer`, whose arrays are views of it. Raises ValueError for an unknown kind."""
    kind, a, b, c, d, e = _arrays(buffer, [_HEADER])[0].tolist()
    match kind:
        case _Kind.FORWARD:
            return Forward(_batch_from_bytes(buffer, a, b, c, d))
        case _Kind.COMMIT:
            return Commit(a, b, c, d, travels=bool(e))
        case _Kind.READ:
            return Read(a, b, c)
        case _Kind.SHORTEN:
            return Shorten(a, b)
        case _Kind.RELEASE:
            return Release(a)
        case _Kind.CAPACITY:
            return Capacity(a)
        case _Kind.STOP:
            return Stop()
    raise ValueError(f"received a message of kind {kind}, expected one of {[each.value for each in _Kind]}")


def hello_from_manifest(manifest: Manifest) -> Bytes:
    """[HELLO_SIZE] what a serving rank says when its session is open: a digest of the messages' layout and its bundle.

    The manifest holds the digest of every file of the bundle.
    """
    digest = hashlib.sha256(bytes([_LAYOUT]) + json_from_record(manifest)).digest()
    return np.frombuffer(digest, np.uint8)


def bytes_from_statistics(statistics: Statistics) -> Bytes:
    """The answer to a `Forward`."""
    arrays = (statistics.topk_ids, statistics.topk_logprobs, statistics.entropy)
    return _joined(*arrays, *(() if statistics.logits is None else (statistics.logits,)))


def statistics_size(wanted: tuple[int, int, int], vocabulary: int | None) -> int:
    """Bytes of the answer for `wanted` = [R, B, Q] rows; `vocabulary` is None for a bundle without logits."""
    return sum(map(_size, _statistics_fields(wanted, vocabulary)))


def statistics_from_bytes(buffer: Bytes, wanted: tuple[int, int, int], vocabulary: int | None) -> Statistics:
    """The answer for `wanted` = [R, B, Q] rows; its arrays are views of `buffer`."""
    topk_ids, topk_logprobs, entropy, *logits = _arrays(buffer, _statistics_fields(wanted, vocabulary))
    return Statistics(topk_ids, topk_logprobs, entropy, logits[0] if logits else None)


def bytes_from_rows(rows: CacheRows) -> Bytes:
    """Rows of all layers in one piece of memory."""
    return _joined(*rows.layers)


def rows_size(shape: CacheShape, count: int) -> int:
    """Bytes of `count` rows of all layers."""
    return sum(map(_size, _rows_fields(shape, count)))


def rows_from_bytes(buffer: Bytes, shape: CacheShape, count: int) -> CacheRows:
    """`count` rows; their arrays are views of `buffer`."""
    return CacheRows(tuple(_arrays(buffer, _rows_fields(shape, count))))


def _batch_from_bytes(buffer: Bytes, requests: int, branches: int, width: int, queries: int) -> WindowBatch:
    window = (requests, branches, width)
    cells = math.prod(window) * width
    fields: list[Field] = [
        _HEADER,
        ((requests,), np.int64),
        (window, np.int64),
        (window, np.int64),
        ((requests, branches, queries), np.int64),
        ((requests,), np.float32),
        ((-(-cells // 8),), np.uint8),
    ]
    _, numbers, input_ids, position_ids, logits_index, temperature, mask = _arrays(buffer, fields)
    return WindowBatch(
        requests=tuple(numbers.tolist()),
        input_ids=input_ids,
        position_ids=position_ids,
        window_mask=np.unpackbits(mask, count=cells).astype(np.bool_).reshape(*window, width),
        logits_index=logits_index,
        temperature=temperature,
    )


def _header(kind: _Kind, *numbers: int) -> npt.NDArray[np.int64]:
    header = np.zeros(*_HEADER)
    header[: 1 + len(numbers)] = (kind, *numbers)
    return header


def _statistics_fields(wanted: tuple[int, int, int], vocabulary: int | None) -> list[Field]:
    fields: list[Field] = [((*wanted, TOP_K), np.int64), ((*wanted, TOP_K), np.float32), (wanted, np.float32)]
    return fields if vocabulary is None else [*fields, ((*wanted, vocabulary), np.float32)]


def _rows_fields(shape: CacheShape, count: int) -> list[Field]:
    return [((shape.kv_heads, count, shape.head_size), shape.dtype)] * shape.arrays


def _joined(*arrays: npt.NDArray[Any]) -> Bytes:
    """The arrays' bytes one after another."""
    return np.concatenate([np.ascontiguousarray(array).reshape(-1).view(np.uint8) for array in arrays])


def _size(field: Field) -> int:
    shape, dtype = field
    return math.prod(shape) * np.dtype(dtype).itemsize


def _arrays(buffer: Bytes, fields: Sequence[Field]) -> list[npt.NDArray[Any]]:
    """Views of `buffer`, one for each field, in order."""
    return list(_cut(buffer, fields))


def _cut(buffer: Bytes, fields: Sequence[Field]) -> Iterable[npt.NDArray[Any]]:
    start = 0
    for field in fields:
        shape, dtype = field
        end = start + _size(field)
        yield buffer[start:end].view(dtype).reshape(shape)
        start = end
