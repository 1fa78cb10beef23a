"""Messages between rank 0 and the serving ranks of an MPI job, as bytes.

A message is a header of fixed size and a payload whose size follows from the header. It is sent with one call, and
nothing is pickled. A reply has no header, because its size follows from the request. All machines of a job must have
the same byte order.
"""

import hashlib
import math
from collections.abc import Sequence
from dataclasses import astuple, dataclass, fields
from itertools import accumulate
from typing import Any

import numpy as np
import numpy.typing as npt

from lopa.runtime.bundle.manifest import Manifest
from lopa.runtime.bundle.record import json_from_record
from lopa.runtime.contract import TOP_K, CacheRows, Statistics
from lopa.runtime.contract.packed_batch import PackedBatch
from lopa.runtime.sessions.prefix_cache import CacheShape

Bytes = npt.NDArray[np.uint8]
Field = tuple[tuple[int, ...], npt.DTypeLike]
"""Shape and type of an array in a message."""

FIRST_CAPACITY = 1 << 16
"""Initial size in bytes of a serving rank's buffer. A `Capacity` message announces a larger one."""
HELLO_SIZE = 32
"""Size in bytes of the first message of every serving rank."""
_LAYOUT = 4
"""Layout version. It changes with every change of the messages, so that different versions reject each other."""
_HEADER: Field = ((7,), np.int64)
"""Header of a message: its kind and up to six numbers."""


@dataclass(frozen=True)
class ForwardMessage:
    """Request to run these windows as forward number `ticket` and to reply with their statistics."""

    ticket: int
    batch: PackedBatch


@dataclass(frozen=True)
class Commit:
    """Request to append the first `count` rows of the winner of forward `ticket` to the request's prefix.

    The winner is `branch` of rank `source`, counted among that rank's branches. With `travels`, all ranks join a
    broadcast of the rows. Without it, every rank has computed the rows, and takes the rows of its own first branch.
    """

    ticket: int
    request: int
    source: int
    branch: int
    count: int
    travels: bool


@dataclass(frozen=True)
class Read:
    """Request to reply with the first `count` rows of the receiver's own `branch` in forward `ticket`."""

    ticket: int
    request: int
    branch: int
    count: int


@dataclass(frozen=True)
class Shorten:
    """Request to drop the committed rows after the first `count`."""

    request: int
    count: int


@dataclass(frozen=True)
class Release:
    """Request to end the use of the new rows of forward `ticket`."""

    ticket: int


@dataclass(frozen=True)
class Free:
    """Request to free the request's cache."""

    request: int


@dataclass(frozen=True)
class Capacity:
    """Announcement that the next message has up to `size` bytes."""

    size: int


@dataclass(frozen=True)
class Stop:
    """Request to end the job."""


Message = ForwardMessage | Commit | Read | Shorten | Release | Free | Capacity | Stop


_KINDS: tuple[type[Message], ...] = (ForwardMessage, Commit, Read, Shorten, Release, Free, Capacity, Stop)
"""Messages by the kind in their header. The numbers of all but the first are their fields."""


def bytes_from_message(message: Message) -> Bytes:
    """Return the whole message as one array."""
    if not isinstance(message, ForwardMessage):
        return _concatenate(_header(message, *astuple(message)))
    batch = message.batch
    sizes = len(batch.requests), len(batch.lengths), len(batch.input_ids), len(batch.sampled_rows)
    return _concatenate(
        _header(message, message.ticket, *sizes),
        np.array(batch.requests, np.int64),
        batch.slots,
        batch.lengths,
        batch.input_ids,
        batch.position_ids,
        batch.sampled_rows,
        batch.temperature,
        np.packbits(batch.mask),
    )


def message_from_bytes(buffer: Bytes) -> Message:
    """Decode the message at the start of `buffer`. Raises ValueError for an unknown kind."""
    number, *numbers = _arrays(buffer, [_HEADER])[0].tolist()
    if not 0 <= number < len(_KINDS):
        raise ValueError(f"received a message of kind {number}, expected one below {len(_KINDS)}")
    kind = _KINDS[number]
    if kind is ForwardMessage:
        return ForwardMessage(numbers[0], _batch_from_bytes(buffer, *numbers[1:5]))
    values = [each.type(value) for each, value in zip(fields(kind), numbers, strict=False)]  # type: ignore[operator]
    message: Message = kind(*values)
    return message


def hello_from_manifest(manifest: Manifest) -> Bytes:
    """Return the first message of a serving rank [HELLO_SIZE]: a digest of the message layout and its bundle.

    The manifest contains the digest of every file of the bundle.
    """
    digest = hashlib.sha256(bytes([_LAYOUT]) + json_from_record(manifest)).digest()
    return np.frombuffer(digest, np.uint8)


def bytes_from_statistics(statistics: Statistics) -> Bytes:
    """Return the reply to a `ForwardMessage`."""
    arrays = (statistics.topk_ids, statistics.topk_logprobs, statistics.entropy)
    return _concatenate(*arrays, *(() if statistics.logits is None else (statistics.logits,)))


def statistics_size(sampled: int, vocabulary: int | None) -> int:
    """Return the bytes of the reply for `sampled` rows. `vocabulary` is None without logits."""
    return sum(map(_size, _statistics_fields(sampled, vocabulary)))


def statistics_from_bytes(buffer: Bytes, sampled: int, vocabulary: int | None) -> Statistics:
    """Decode the reply for `sampled` rows, as views of `buffer`."""
    topk_ids, topk_logprobs, entropy, *logits = _arrays(buffer, _statistics_fields(sampled, vocabulary))
    return Statistics(topk_ids, topk_logprobs, entropy, logits[0] if logits else None)


def bytes_from_rows(rows: CacheRows) -> Bytes:
    """Return the rows of all layers as one array."""
    return _concatenate(*rows.layers)


def rows_size(shape: CacheShape, count: int) -> int:
    """Return the bytes of `count` rows of all layers."""
    return sum(map(_size, _rows_fields(shape, count)))


def rows_from_bytes(buffer: Bytes, shape: CacheShape, count: int) -> CacheRows:
    """Decode `count` rows as views of `buffer`."""
    return CacheRows(tuple(_arrays(buffer, _rows_fields(shape, count))))


def _batch_from_bytes(buffer: Bytes, requests: int, windows: int, rows: int, sampled: int) -> PackedBatch:
    fields: list[Field] = [
        _HEADER,
        ((requests,), np.int64),
        ((windows,), np.int64),
        ((windows,), np.int64),
        ((rows,), np.int64),
        ((rows,), np.int64),
        ((sampled,), np.int64),
        ((requests,), np.float32),
    ]
    arrays = [array.copy() for array in _arrays(buffer, fields)]  # a ticket keeps them beyond the next message
    _, numbers, slots, lengths, input_ids, position_ids, sampled_rows, temperature = arrays
    mask = np.unpackbits(buffer[sum(map(_size, fields)) :], count=int((lengths**2).sum()))
    return PackedBatch(
        requests=tuple(numbers.tolist()),
        temperature=temperature,
        slots=slots,
        lengths=lengths,
        input_ids=input_ids,
        position_ids=position_ids,
        mask=mask.view(np.bool_),
        sampled_rows=sampled_rows,
    )


def _header(message: Message, *numbers: int) -> npt.NDArray[np.int64]:
    header = np.zeros(*_HEADER)
    header[: 1 + len(numbers)] = (_KINDS.index(type(message)), *numbers)
    return header


def _statistics_fields(sampled: int, vocabulary: int | None) -> list[Field]:
    fields: list[Field] = [((sampled, TOP_K), np.int64), ((sampled, TOP_K), np.float32), ((sampled,), np.float32)]
    return fields if vocabulary is None else [*fields, ((sampled, vocabulary), np.float32)]


def _rows_fields(shape: CacheShape, count: int) -> list[Field]:
    return [((shape.kv_heads, count, shape.head_size), shape.dtype)] * shape.arrays


def _concatenate(*arrays: npt.NDArray[Any]) -> Bytes:
    """Return the concatenated bytes of the arrays."""
    return np.concatenate([np.ascontiguousarray(array).reshape(-1).view(np.uint8) for array in arrays])


def _size(field: Field) -> int:
    shape, dtype = field
    return math.prod(shape) * np.dtype(dtype).itemsize


def _arrays(buffer: Bytes, fields: Sequence[Field]) -> list[npt.NDArray[Any]]:
    """Return views of `buffer`, one per field, in order."""
    ends = list(accumulate(map(_size, fields)))
    parts = zip(fields, [0, *ends], ends, strict=False)
    return [buffer[start:end].view(dtype).reshape(shape) for (shape, dtype), start, end in parts]
