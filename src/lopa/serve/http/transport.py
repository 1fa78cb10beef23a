"""Transport that closes a connection without losing the last answer, within a time limit. This module does not depend
on HTTP."""

import asyncio
import socket
import struct
from contextlib import suppress
from typing import Any

_RESET_ON_CLOSE = struct.pack("ii", 1, 0)
"""SO_LINGER value that drops unsent data on close."""


class GracefulTransport(asyncio.Transport):
    """Wrapper of a socket's transport that closes gracefully.

    Closing a socket while its client still sends causes a reset, which loses the answer. In the middle of a request
    `close` therefore only ends the answer and lets the protocol read and drop the rest. Then the client closes the
    connection, or `hang_up` does.
    """

    unread = False
    """True while the client is in the middle of a request. The protocol sets it."""

    def __init__(self, transport: asyncio.Transport, seconds: float) -> None:
        """Store the transport. Data not sent or read within `seconds` of the end is dropped."""
        super().__init__()
        self._transport, self._seconds = transport, seconds
        self._loop = asyncio.get_running_loop()
        self._closing = False
        self._timer: asyncio.TimerHandle | None = None

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        """Return the inner transport's value."""
        return self._transport.get_extra_info(name, default)

    def write(self, data: Any) -> None:
        """Write `data`, or drop it once the connection is closing."""
        if not self._closing:
            self._transport.write(data)

    def pause_reading(self) -> None:  # noqa: D102
        self._transport.pause_reading()

    def resume_reading(self) -> None:  # noqa: D102
        self._transport.resume_reading()

    def is_closing(self) -> bool:
        """Return whether the connection is closing, also while the rest of a request is read."""
        return self._closing or self._transport.is_closing()

    def close(self) -> None:
        """Close once everything is sent and the client has nothing more to send."""
        if self._closing:
            return
        if not self.unread:
            self.hang_up()
            return
        self._start_closing()
        with suppress(OSError):  # the client has disconnected
            self._transport.write_eof()
        self._transport.resume_reading()

    def hang_up(self) -> None:
        """Close once everything is sent, whatever the client does."""
        self._start_closing()
        self._transport.close()

    def abort(self) -> None:
        """Close at once and discard data that the system has not sent."""
        self._closing = True
        with suppress(OSError):
            self._transport.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET_ON_CLOSE)
        self._transport.abort()

    def on_connection_lost(self) -> None:
        """Cancel the timeout after the connection was lost."""
        self._closing = True
        if self._timer is not None:
            self._timer.cancel()

    def _start_closing(self) -> None:
        self._closing = True
        if self._timer is None:
            self._timer = self._loop.call_later(self._seconds, self.abort)
