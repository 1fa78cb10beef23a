"""Messages between the ranks of an MPI job round-trip as bytes, without MPI."""

import dataclasses
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.runtime.random_windows import random_batch

from lopa.runtime.bundle import Bundle
from lopa.runtime.contract import CacheRows
from lopa.runtime.contract.packed_batch import packed_batch
from lopa.runtime.mpi.mpi_messages import (
    FIRST_CAPACITY,
    HELLO_SIZE,
    Capacity,
    Commit,
    ForwardMessage,
    Free,
    Message,
    Read,
    Release,
    Shorten,
    Stop,
    bytes_from_message,
    bytes_from_rows,
    hello_from_manifest,
    message_from_bytes,
    rows_from_bytes,
    rows_size,
)
from lopa.runtime.sessions.prefix_cache import CacheShape

numbers = st.integers(0, 2**62)


@given(st.integers(1, 3), st.integers(1, 5), st.integers(1, 20), st.integers(1, 6), st.integers(0, 2**32))
def test_forward_message_round_trips(requests: int, branches: int, width: int, queries: int, seed: int) -> None:
    rng = np.random.default_rng(seed)
    batch = random_batch(rng, rng.permutation(100)[:requests].tolist(), branches, width, queries, starts=7)
    packed = packed_batch(batch)
    data = bytes_from_message(ForwardMessage(seed, packed))
    leftover = rng.integers(0, 256, 50, np.uint8)  # left over from an earlier, longer message
    found = message_from_bytes(np.concatenate([data, leftover]))
    assert isinstance(found, ForwardMessage)
    assert found.ticket == seed
    for field in dataclasses.fields(packed):
        sent, received = getattr(packed, field.name), getattr(found.batch, field.name)
        np.testing.assert_array_equal(received, sent)
        assert type(received) is type(sent)
        assert np.asarray(received).dtype == np.asarray(sent).dtype


@given(
    st.builds(Commit, numbers, numbers, numbers, numbers, numbers, st.booleans())
    | st.builds(Read, numbers, numbers, numbers, numbers)
    | st.builds(Shorten, numbers, numbers)
    | st.builds(Release, numbers)
    | st.builds(Free, numbers)
    | st.builds(Capacity, numbers)
    | st.just(Stop())
)
def test_short_messages_have_one_size(message: Message) -> None:
    data = bytes_from_message(message)
    assert data.size == bytes_from_message(Stop()).size < FIRST_CAPACITY
    assert message_from_bytes(data) == message


def test_unknown_kind_raises() -> None:
    data = bytes_from_message(Release(4))
    data[0] = 77
    with pytest.raises(ValueError, match="received a message of kind 77"):
        message_from_bytes(data)


@pytest.mark.parametrize("dtype", [np.float32, np.float16, np.uint16])
@pytest.mark.parametrize("count", [0, 1, 9])
def test_rows_round_trip(dtype: type[np.generic], count: int) -> None:
    rng, shape = np.random.default_rng(4), CacheShape(6, 2, 4, np.dtype(dtype))
    window = [rng.integers(0, 1 << 15, (2, 12, 4)).astype(dtype) for _ in range(6)]
    sent = CacheRows(tuple(array[:, :count] for array in window))
    data = bytes_from_rows(sent)
    assert data.size == rows_size(shape, count)
    received = rows_from_bytes(data, shape, count)
    for found, expected in zip(received.layers, sent.layers, strict=True):
        np.testing.assert_array_equal(found, expected)
        assert found.dtype == expected.dtype


def test_hello_differs_between_bundles(tiny_bundle: Path, tiny_bundle_logits: Path) -> None:
    first, second = (Bundle.open(path).manifest for path in (tiny_bundle, tiny_bundle_logits))
    hello = hello_from_manifest(first)
    assert hello.size == HELLO_SIZE
    assert not np.array_equal(hello, hello_from_manifest(second))
    np.testing.assert_array_equal(hello, hello_from_manifest(Bundle.open(tiny_bundle).manifest))
