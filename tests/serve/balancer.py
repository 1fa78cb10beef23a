"""A balancer of connections, as Kubernetes' Services are: it does not look at requests."""

import asyncio
import threading
from contextlib import suppress


class Balancer:
    """Passes each new connection to the next of `ports` on this machine, and keeps it there until it ends."""

    def __init__(self, *ports: int) -> None:
        self.ports = list(ports)
        self.connections = 0
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever)

    def __enter__(self) -> "Balancer":
        self._server = self._loop.run_until_complete(asyncio.start_server(self._pass_on, "127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self._server.sockets[0].getsockname()[1]}"
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._server.close()
        with suppress(TimeoutError):
            self._loop.run_until_complete(asyncio.wait_for(asyncio.gather(*asyncio.all_tasks(self._loop)), 10))
        self._loop.run_until_complete(asyncio.sleep(0.1))  # transports close
        self._loop.close()

    async def _pass_on(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        port = self.ports[self.connections % len(self.ports)]
        with suppress(OSError):
            server_reader, server_writer = await asyncio.open_connection("127.0.0.1", port)
            await asyncio.gather(_copy(reader, server_writer), _copy(server_reader, writer))
        writer.close()


async def _copy(source: asyncio.StreamReader, target: asyncio.StreamWriter) -> None:
    """Copy bytes until `source` ends, and close `target` then."""
    try:
        while part := await source.read(65536):
            target.write(part)
            await target.drain()
    finally:
        target.close()
