"""Device threads: order, errors, end and pinning."""

import os
import subprocess
import sys
import threading
from functools import partial
from pathlib import Path

import pytest
from tests.python_path import python_path

from lopa.runtime.sessions.device_worker import DeviceWorker, pin_thread

ROOT = Path(__file__).resolve().parents[3]


def test_work_runs_in_order_on_one_thread() -> None:
    worker = DeviceWorker("test")
    done: list[int] = []
    threads = set()

    def work(number: int) -> int:
        threads.add(threading.get_ident())
        done.append(number)
        return number * number

    futures = [worker.submit(partial(work, number)) for number in range(200)]
    assert [future.result(timeout=60) for future in futures] == [number * number for number in range(200)]
    assert done == list(range(200))
    assert len(threads) == 1
    assert threading.get_ident() not in threads
    worker.stop()


def test_errors_reach_the_caller_and_the_thread_continues() -> None:
    worker = DeviceWorker("test")
    failing = worker.submit(lambda: {}["nothing"])
    leaving = worker.submit(sys.exit)
    after = worker.submit(lambda: 5)
    with pytest.raises(KeyError, match="nothing"):
        failing.result(timeout=60)
    with pytest.raises(SystemExit):
        leaving.result(timeout=60)
    assert after.result(timeout=60) == 5
    worker.stop()


def test_cancelled_work_is_skipped() -> None:
    worker = DeviceWorker("test")
    gate, ran = threading.Event(), []
    worker.submit(lambda: gate.wait(20))
    cancelled = worker.submit(lambda: ran.append(1))
    assert cancelled.cancel()
    gate.set()
    assert worker.submit(lambda: 5).result(timeout=60) == 5
    assert cancelled.cancelled()
    assert not ran
    worker.stop()


def test_stop_ends_the_thread_after_its_work() -> None:
    worker = DeviceWorker("the one to stop")
    gate = threading.Event()
    first = worker.submit(lambda: gate.wait(20))
    (thread,) = (thread for thread in threading.enumerate() if thread.name == "the one to stop")
    worker.stop()
    late = worker.submit(lambda: 1)
    gate.set()
    thread.join(20)
    assert not thread.is_alive()
    assert first.result(timeout=0)
    assert not late.done()


@pytest.mark.skipif(not hasattr(os, "sched_getaffinity"), reason="needs Linux to pin threads")
def test_only_the_calling_thread_is_pinned() -> None:
    mine = os.sched_getaffinity(0)
    core = max(mine)
    worker = DeviceWorker("test")
    worker.submit(lambda: pin_thread([core]))
    assert worker.submit(lambda: os.sched_getaffinity(0)).result(timeout=60) == {core}
    assert os.sched_getaffinity(0) == mine
    worker.stop()


def test_hanging_thread_does_not_block_exit() -> None:
    program = """
import time
from lopa.runtime.sessions.device_worker import DeviceWorker
DeviceWorker("hangs").submit(lambda: time.sleep(1000))
print("over")
"""
    done = subprocess.run(
        [sys.executable, "-c", program],
        env={**os.environ, "PYTHONPATH": python_path(ROOT / "src")},
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    assert done.stdout == "over\n"
