"""The memory of device stand-ins is used by several threads at once."""

import sys
import threading

from tests.runtime.accelerator.host_blocks import HostBlocks


def test_a_block_is_found_while_another_thread_adds_blocks() -> None:
    blocks, stop = HostBlocks(), threading.Event()
    for address in range(0, 64_000, 1000):
        blocks.add(address, 8, 0)

    def add_and_remove() -> None:
        while not stop.is_set():
            blocks.add(100_000, 8, 1)
            blocks.remove(100_000, ())

    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    other = threading.Thread(target=add_and_remove)
    other.start()
    try:
        for _ in range(2000):
            assert blocks.view(63_000, 8).size == 8
            assert blocks.total(lambda owner: owner == 0) == 64 * 8
    finally:
        stop.set()
        other.join()
        sys.setswitchinterval(interval)
