"""Sessions from device names: their kind, cores and shared graphs, and names that cannot be opened."""

import os
import re
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.runtime.random_windows import assert_same_statistics, random_batch
from tests.runtime.sequential import sequential

from lopa.runtime.bundle import Bundle
from lopa.runtime.devices import session_from_devices
from lopa.runtime.errors import BadInputError, MissingBackendError
from lopa.runtime.multi_device.branch_session import BranchParallelSession
from lopa.runtime.sessions.host_session import HostSession
from lopa.runtime.sessions.session import Session, open_session

linux = pytest.mark.skipif(not hasattr(os, "sched_getaffinity"), reason="needs Linux, where threads are bound to cores")


@pytest.fixture
def cores() -> list[int]:
    """Return the numbers of this machine's cores."""
    return sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else [0]


def allowed_cores(task: int) -> str:
    status = Path(f"/proc/self/task/{task}/status").read_text()
    return re.search(r"Cpus_allowed_list:\s+(\S+)", status)[1]  # type: ignore[index]


def core_last_run_on(task: int) -> int:
    """Return the core from field 39 of proc(5)'s stat. The second field, a name in parentheses, may contain spaces."""
    return int(Path(f"/proc/self/task/{task}/stat").read_text().rpartition(")")[2].split()[36])


def test_one_device_is_its_own_session(tiny_bundle: Path) -> None:
    session = session_from_devices(Bundle.open(tiny_bundle), ["cpu"], threads=1)
    assert isinstance(session, HostSession)
    assert session.device == "cpu"
    session.close()


@linux
def test_cores_are_driven_by_a_thread_bound_to_them(tiny_bundle: Path, cores: list[int]) -> None:
    """/proc shows the cores where the device's thread may run, and where it ran."""
    core = cores[-1]
    mine = os.sched_getaffinity(0)
    session = session_from_devices(Bundle.open(tiny_bundle), [f"cpu:{core}"])
    assert isinstance(session, BranchParallelSession)
    (thread,) = (thread for thread in threading.enumerate() if thread.name == f"lopa cpu:{core}")
    ran_on = set()
    for seed in range(20):
        sequential(session).forward(random_batch(np.random.default_rng(seed), [1], 4, 40, 1))
        ran_on.add(core_last_run_on(thread.native_id))
    assert allowed_cores(thread.native_id) == str(core)
    assert ran_on == {core}
    assert os.sched_getaffinity(0) == mine
    session.close()


@pytest.fixture
def opened_graphs() -> Iterator[list[Any]]:
    import onnxruntime as ort

    seen: list[Any] = []
    original = ort.InferenceSession

    class Recorded(original):  # type: ignore[misc, valid-type]
        def __init__(self, path: str, options: Any, **named: Any) -> None:
            seen.append(options.intra_op_num_threads)
            super().__init__(path, options, **named)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ort, "InferenceSession", Recorded)
        yield seen


@linux
def test_devices_of_one_core_share_a_graph(copy: Path, cores: list[int], opened_graphs: list[Any]) -> None:
    """A graph with one thread starts none, so any device may run it, and its packed weights are stored once. A graph
    whose threads are bound to cores is a different one."""
    if len(cores) < 2:
        pytest.skip("needs two cores")
    copied_bundle = Bundle.open(copy)  # no other test has it open
    session = session_from_devices(copied_bundle, [f"cpu:{core}" for core in cores[:2]])
    assert opened_graphs == [1]
    alone = open_session(copied_bundle, "cpu", threads=1)
    assert opened_graphs == [1]
    pair = open_session(copied_bundle, f"cpu:{cores[0]}-{cores[1]}")
    assert opened_graphs == [1, 2]
    batch = random_batch(np.random.default_rng(0), [1], 4, 20, 5)
    expected = sequential(alone).forward(batch)
    for other in (session, pair):
        assert_same_statistics(sequential(other).forward(batch), expected)
        other.close()
    alone.close()


def test_sessions_are_closed_when_a_device_is_missing(tiny_bundle: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    opened: list[Session] = []

    def recorded(*arguments: Any, **named: Any) -> Session:
        opened.append(open_session(*arguments, **named))
        return opened[-1]

    monkeypatch.setattr("lopa.runtime.devices.open_session", recorded)
    with pytest.raises((BadInputError, MissingBackendError), match="cuda:99"):
        session_from_devices(Bundle.open(tiny_bundle), ["numpy", "cuda:99"])
    (first,) = opened
    with pytest.raises(RuntimeError, match=r"after close\(\)"):
        sequential(first).forward(random_batch(np.random.default_rng(0), [1], 1, 4, 1))
