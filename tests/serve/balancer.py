"""A balancer of connections, as Kubernetes' Services are: it does not look at requests."""

import socket
from contextlib import suppress
from socketserver import BaseRequestHandler, ThreadingTCPServer
from threading import Thread


class Balancer(ThreadingTCPServer):
    """Passes each new connection to the next of `ports` on this machine, and keeps it there until it ends."""

    daemon_threads = True

    def __init__(self, *ports: int) -> None:
        super().__init__(("127.0.0.1", 0), _Connection)
        self.ports = list(ports)
        self.url = f"http://127.0.0.1:{self.server_address[1]}"
        Thread(target=self.serve_forever, args=(0.05,), daemon=True).start()

    def __exit__(self, *_: object) -> None:
        self.shutdown()
        self.server_close()


class _Connection(BaseRequestHandler):
    def handle(self) -> None:
        ports = self.server.ports = [*self.server.ports[1:], self.server.ports[0]]
        with suppress(OSError), socket.create_connection(("127.0.0.1", ports[0])) as server:
            Thread(target=_copy, args=(server, self.request), daemon=True).start()
            _copy(self.request, server)


def _copy(source: socket.socket, target: socket.socket) -> None:
    """Copy bytes until `source` ends."""
    with suppress(OSError):
        while part := source.recv(65536):
            target.sendall(part)
        target.shutdown(socket.SHUT_RDWR)
