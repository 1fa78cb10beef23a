"""Sessions on their own thread: all of their calls run there."""

import threading
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.runtime.random_windows import assert_same_statistics, random_batch
from tests.runtime.sequential import sequential

from lopa.runtime.bundle import Bundle
from lopa.runtime.sessions.device_worker import SessionThread, ThreadedSession
from lopa.runtime.sessions.session import Session, open_session


class ThreadRecorder:
    """Session wrapper that records the threads of its calls."""

    def __init__(self, session: Session, threads: dict[str, set[str]]) -> None:
        self._session, self._threads = session, threads
        threads["open"] = {threading.current_thread().name}

    def __getattr__(self, name: str) -> Any:
        def recorded(*arguments: Any) -> Any:
            self._threads.setdefault(name, set()).add(threading.current_thread().name)
            return getattr(self._session, name)(*arguments)

        return recorded


@pytest.fixture
def bundle(tiny_bundle: Path) -> Bundle:
    return Bundle.open(tiny_bundle)


def test_all_calls_run_on_one_thread_and_return_the_same(bundle: Bundle) -> None:
    threads: dict[str, set[str]] = {}
    plain = open_session(bundle, "cpu", threads=1)
    session = ThreadedSession("there", lambda: ThreadRecorder(open_session(bundle, "cpu", threads=1), threads))
    batch = random_batch(np.random.default_rng(0), (0,), 2, 20, 4)
    assert session.device == "there"
    assert_same_statistics(sequential(session).forward(batch), sequential(plain).forward(batch))
    read = sequential(session).read_rows(0, 1, 7)
    for ours, theirs in zip(read.layers, sequential(plain).read_rows(0, 1, 7).layers, strict=True):
        np.testing.assert_array_equal(ours, theirs)
    sequential(session).commit(0, 1, 5)
    session.append_rows(0, read)
    assert session.prefix_length(0) == 12
    session.shorten(0, 3)
    assert session.prefix_length(0) == 3
    session.append_kept(0, [session.keep_rows(0, 0, 3)])
    assert (session.prefix_length(0), session.free_rows()) == (6, None)
    session.free(0)
    assert session.prefix_length(0) == 0
    session.close()
    session.close()
    session.free(0)
    plain.close()
    for name in ("open", "start", "wait", "read_rows", "commit", "append_rows", "keep_rows", "free"):
        assert threads[name] == {"lopa there"}, name
    with pytest.raises(RuntimeError, match=r"after close\(\)"):
        sequential(session).forward(batch)


def test_take_over_returns_session_and_thread(bundle: Bundle) -> None:
    threads: dict[str, set[str]] = {}
    session = ThreadedSession("there", lambda: ThreadRecorder(open_session(bundle, "cpu", threads=1), threads))
    device = SessionThread(session)
    assert device.submit(partial(device.session.prefix_length, 0)).result(20) == 0
    with pytest.raises(RuntimeError, match=r"after close\(\)"):
        sequential(session).forward(random_batch(np.random.default_rng(0), (0,), 2, 20, 4))
    session.close()
    assert "close" not in threads
    device.close().result(20)
    assert threads["prefix_length"] == threads["close"] == {"lopa there"}
