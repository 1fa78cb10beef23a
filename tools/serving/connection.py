"""HTTP/1.1 by hand, so that a client may be slow, or leave half-way: one connection, one request after another.

Knows HTTP as far as this project's server speaks it, and nothing of what is asked.
"""

import asyncio
import json
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

_LINE = 2**22
"""Bytes of the longest event that is read; a draft is the whole answer."""
_RUDE = "connection closed by the server in the middle"


@dataclass(frozen=True)
class Address:
    """Where a server listens."""

    host: str
    port: int


@dataclass(frozen=True)
class Head:
    """The beginning of an answer; names of headers in small letters."""

    status: int
    headers: dict[str, str]


class Connection:
    """Sends a request and reads its answer, whole or part by part, then the next. Raises ConnectionError when the
    server hangs up in between."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, host: str) -> None:
        self._reader, self._writer, self._host = reader, writer, host

    async def send(self, path: str, body: bytes, *, pieces: int = 1, pause: float = 0.0) -> None:
        """Send a POST whole, its body in so many pieces with `pause` seconds before each but the first."""
        self.begin(path, len(body))
        size = -(-len(body) // pieces) or 1
        for start in range(0, len(body), size):
            if start:
                await asyncio.sleep(pause)
            self._writer.write(body[start : start + size])
            await self._writer.drain()

    def begin(self, path: str, length: int) -> None:
        """Send the head of a POST that announces a body of `length` bytes."""
        self._writer.write(
            f"POST {path} HTTP/1.1\r\nHost: {self._host}\r\nContent-Type: application/json\r\n"
            f"Content-Length: {length}\r\n\r\n".encode()
        )

    def push(self, part: bytes) -> None:
        """Send some of the body."""
        self._writer.write(part)

    async def head(self) -> Head:
        """What the answer begins with."""
        try:
            lines = (await self._reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
        except asyncio.IncompleteReadError as error:
            raise ConnectionError(_RUDE) from error
        fields = (line.partition(":") for line in lines[1:] if line)
        return Head(int(lines[0].split()[1]), {name.lower(): value.strip() for name, _, value in fields})

    async def body(self, head: Head) -> Any:
        """Return the JSON behind a head, which announces its length or is followed by chunks."""
        if "content-length" not in head.headers:
            return json.loads(b"".join([part async for part in self.parts()]))
        try:
            return json.loads(await self._reader.readexactly(int(head.headers["content-length"])))
        except asyncio.IncompleteReadError as error:
            raise ConnectionError(_RUDE) from error

    async def parts(self, *, pause: float = 0.0) -> AsyncIterator[bytes]:
        """Parts of a chunked body as the server wrote them, `pause` seconds before each."""
        try:
            while True:
                await asyncio.sleep(pause)
                size = int(await self._reader.readuntil(b"\r\n"), 16)
                part = (await self._reader.readexactly(size + 2))[:-2]
                if not size:
                    return
                yield part
        except asyncio.IncompleteReadError as error:
            raise ConnectionError(_RUDE) from error


@asynccontextmanager
async def connected(address: Address, *, receive_bytes: int | None = None) -> AsyncIterator[Connection]:
    """A connection, closed at the end whatever state it is in; `receive_bytes`: of the buffer for what was not read."""
    # With its protocol, without which asyncio leaves Nagle's algorithm on: a body would wait 40 ms behind its head.
    connecting = socket.socket(socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    try:
        if receive_bytes is not None:
            connecting.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_bytes)
        connecting.setblocking(False)
        await asyncio.get_running_loop().sock_connect(connecting, (address.host, address.port))
        limit = _LINE if receive_bytes is None else receive_bytes
        reader, writer = await asyncio.open_connection(sock=connecting, limit=limit)
    except BaseException:
        connecting.close()
        raise
    try:
        yield Connection(reader, writer, f"{address.host}:{address.port}")
    finally:
        writer.transport.abort()
