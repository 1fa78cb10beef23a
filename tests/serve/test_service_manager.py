"""Reports of a server to a socket of systemd's protocol: readiness, heartbeats and the stop."""

import asyncio
import signal
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.runtime.requests.batch_mates import Gate
from tests.serve.servers import WAIT, serving
from tests.serve.test_process import start_stream
from tests.serve.test_streams import long_body

from lopa.runtime.engine import Engine
from lopa.runtime.errors import BadInputError
from lopa.serve.service_manager import send_heartbeats, send_state, watchdog_seconds


@pytest.fixture
def manager(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[socket.socket]:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as received:
        received.bind(f"\0{tmp_path}")
        received.settimeout(WAIT)
        monkeypatch.setenv("NOTIFY_SOCKET", f"@{tmp_path}")
        yield received


def test_a_server_reports_readiness_heartbeats_and_its_stop(chat_bundle: Path, manager: socket.socket) -> None:
    with serving(chat_bundle, variables={"WATCHDOG_USEC": "40000"}) as server:
        assert [manager.recv(99) for _ in range(3)] == [b"READY=1", b"WATCHDOG=1", b"WATCHDOG=1"]
        reader = start_stream(server, long_body(300, stream=True), [])
        server.process.send_signal(signal.SIGTERM)
        while (state := manager.recv(99)) == b"WATCHDOG=1":
            pass
        assert state == b"STOPPING=1"
        assert manager.recv(99) == b"WATCHDOG=1", "a draining server is alive"
        reader.join(WAIT)
        assert server.ended()[0] == 0


def test_heartbeats_pause_while_a_round_hangs(tiny_bundle: Path, manager: socket.socket) -> None:
    gate = Gate()

    def hang() -> None:
        handle = engine.submit("1", max_new_tokens=4, on_step=gate)
        assert gate.reached.wait(WAIT)
        manager.settimeout(0.5)
        with pytest.raises(TimeoutError):
            [manager.recv(99) for _ in range(100)]  # the first ones are for the rounds before
        manager.settimeout(WAIT)
        gate.open()
        assert manager.recv(99) == b"WATCHDOG=1"
        assert handle.result(WAIT).tokens

    async def hang_with_heartbeats() -> None:
        beating = asyncio.create_task(send_heartbeats(lambda: [engine], 0.04))
        await asyncio.to_thread(hang)
        beating.cancel()

    with Engine.open(tiny_bundle) as engine:
        asyncio.run(hang_with_heartbeats())


def test_unusable_variables_are_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("NOTIFY_SOCKET", path := str(tmp_path / "notify"))
    send_state("READY=1")
    assert f"READY=1 not sent to NOTIFY_SOCKET {path}" in caplog.text
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as received:
        received.bind(path)
        send_state("READY=1")
        assert received.recv(99) == b"READY=1"
    monkeypatch.setenv("WATCHDOG_USEC", "10s")
    with pytest.raises(BadInputError, match="WATCHDOG_USEC is '10s'"):
        watchdog_seconds()
    monkeypatch.setenv("WATCHDOG_PID", "1")
    assert watchdog_seconds() is None, "it is another process's"
