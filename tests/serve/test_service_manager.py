"""Reports of a server to a socket of systemd's protocol: readiness, heartbeats and the stop."""

import asyncio
import os
import select
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


@pytest.fixture(params=["path", "abstract"])
def manager(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[socket.socket]:
    address = str(tmp_path / "notify") if request.param == "path" else f"\0lopa-{os.getpid()}"
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as received:
        received.bind(address)
        received.settimeout(WAIT)
        yield received


def address_of(manager: socket.socket) -> str:
    name = manager.getsockname()
    return f"@{name[1:].decode()}" if isinstance(name, bytes) else str(name)


def drop_received(manager: socket.socket) -> int:
    """Return the number of states that have arrived."""
    number = 0
    while select.select([manager], [], [], 0)[0]:
        manager.recv(99)
        number += 1
    return number


def test_a_server_reports_readiness_heartbeats_and_its_stop(chat_bundle: Path, manager: socket.socket) -> None:
    variables = {"NOTIFY_SOCKET": address_of(manager), "WATCHDOG_USEC": "400000"}
    with serving(chat_bundle, variables=variables) as server:
        assert [manager.recv(99) for _ in range(3)] == [b"READY=1", b"WATCHDOG=1", b"WATCHDOG=1"]
        lines: list[str] = []
        reader = start_stream(server, long_body(300, stream=True), lines)
        server.process.send_signal(signal.SIGTERM)
        while (state := manager.recv(99)) == b"WATCHDOG=1":
            pass
        assert state == b"STOPPING=1"
        assert manager.recv(99) == b"WATCHDOG=1", "a draining server is alive"
        reader.join(WAIT)
        assert server.ended()[0] == 0


@pytest.mark.parametrize("manager", ["path"], indirect=True)
def test_heartbeats_pause_while_a_round_hangs(
    tiny_bundle: Path, manager: socket.socket, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NOTIFY_SOCKET", address_of(manager))
    gate, looks = Gate(), 0

    def engines() -> list[Engine]:
        nonlocal looks
        looks += 1
        return [engine]

    async def hang() -> None:
        beating = asyncio.create_task(send_heartbeats(engines, 0.04))
        handle = engine.submit("1", max_new_tokens=4, on_step=gate)
        assert await asyncio.to_thread(gate.reached.wait, WAIT)
        seen = looks + 2  # the first look may still see the round before
        while looks < seen + 3:
            await asyncio.sleep(0.01)
            if looks <= seen:
                drop_received(manager)
        assert not drop_received(manager)
        gate.open()
        assert await asyncio.to_thread(manager.recv, 99) == b"WATCHDOG=1"
        assert (await asyncio.to_thread(handle.result, WAIT)).tokens
        assert not beating.done()

    with Engine.open(tiny_bundle) as engine:
        asyncio.run(hang())


def test_unusable_variables_are_named(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    monkeypatch.setenv("NOTIFY_SOCKET", "/nowhere/notify")
    send_state("READY=1")
    assert "READY=1 not sent to NOTIFY_SOCKET /nowhere/notify" in caplog.text
    monkeypatch.setenv("WATCHDOG_USEC", "10s")
    with pytest.raises(BadInputError, match="WATCHDOG_USEC is '10s'"):
        watchdog_seconds()
    monkeypatch.setenv("WATCHDOG_PID", "1")
    assert watchdog_seconds() is None, "it is another process's"
