"""Arrays of device memory, on the strict host memory of host_memory.py, and padding to a shape bucket."""

import numpy as np
from tests.buckets import bucket
from tests.runtime.accelerator.host_memory import HostMemory
from tests.runtime.random_windows import random_batch

from lopa.runtime.accelerator.device_memory import GrowingBuffers
from lopa.runtime.accelerator.padding import padded_batch


def test_growing_buffers_keep_addresses_until_too_small() -> None:
    memory = HostMemory()
    growing = GrowingBuffers(memory)
    first = growing.buffers({"a": 100, "b": 700})
    assert [first[name].size for name in "ab"] == [100, 700]
    assert growing.buffers({"a": 90, "b": 700}) == first
    grown = growing.buffers({"a": 600, "b": 5, "c": 1})
    assert {name: buffer.size for name, buffer in grown.items()} == {"a": 600, "b": 700, "c": 1}
    assert growing.buffers({"b": 700, "a": 600}) == grown
    assert len(memory.blocks) == 1
    memory.view(grown["b"].address, 700)
    growing.free()
    growing.free()
    assert memory.blocks == {}


def test_padding_rows_attend_to_themselves_only() -> None:
    batch = random_batch(np.random.default_rng(0), (4, -2), 2, 5, 3, starts=7)
    padded = padded_batch(batch, bucket(3, 3, 8, 64, wanted=4))
    assert padded.requests == (4, -2, -3)
    assert (padded.input_ids.shape, padded.logits_index.shape) == ((3, 3, 8), (3, 3, 4))
    for name in ("input_ids", "position_ids"):
        np.testing.assert_array_equal(getattr(padded, name)[:2, :2, :5], getattr(batch, name))
    np.testing.assert_array_equal(padded.logits_index[:2, :2, :3], batch.logits_index)
    np.testing.assert_array_equal(padded.temperature, [*batch.temperature, 1])
    expected = np.broadcast_to(np.eye(8, dtype=np.bool_), (3, 3, 8, 8)).copy()
    expected[:2, :2, :5, :5] = batch.window_mask
    np.testing.assert_array_equal(padded.window_mask, expected)
