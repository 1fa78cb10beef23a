"""Arrays of device memory, on the strict host memory of host_memory.py."""

from tests.runtime.accelerator.host_memory import HostMemory

from lopa.runtime.accelerator.device_memory import GrowingBuffers


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
