"""The transport of a connection, which is closed so that the last answer arrives, and in a time. Knows no HTTP."""

import asyncio
import socket
import struct
from contextlib import suppress
from typing import Any

_FORGET = struct.pack("ii", 1, 0)
"""For SO_LINGER: what the system still has to send is dropped."""


class OrderlyTransport(asyncio.Transport):
    """Around the transport of a socket.

    A socket that is closed while its client still sends becomes a reset, with which the answer is lost on the way. So
    `close` in the middle of a request says that the answer has ended, and leaves it to the protocol to read the rest
    and drop it; the client hangs up, or `hang_up` does.
    """

    unread = False
    """Whether the client is in the middle of a request. Set by the protocol."""

    def __init__(self, transport: asyncio.Transport, seconds: float) -> None:
        """Whatever is not sent, or not read, `seconds` after the end is dropped."""
        super().__init__()
        self._transport, self._seconds = transport, seconds
        self._loop = asyncio.get_running_loop()
        self._closing = False
        self._timer: asyncio.TimerHandle | None = None

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        """As that of the transport inside; so are the others without a word."""
        return self._transport.get_extra_info(name, default)

    def write(self, data: Any) -> None:
        """What comes after the end is dropped."""
        if not self._closing:
            self._transport.write(data)

    def pause_reading(self) -> None:  # noqa: D102
        self._transport.pause_reading()

    def resume_reading(self) -> None:  # noqa: D102
        self._transport.resume_reading()

    def is_closing(self) -> bool:
        """Also while the rest of a request is read."""
        return self._closing or self._transport.is_closing()

    def close(self) -> None:
        """End it when all is sent and the client has nothing more to send."""
        if self._closing:
            return
        if not self.unread:
            self.hang_up()
            return
        self._begin_end()
        with suppress(OSError):  # the client has gone
            self._transport.write_eof()
        self._transport.resume_reading()

    def hang_up(self) -> None:
        """End it when all is sent, whatever the client does."""
        self._begin_end()
        self._transport.close()

    def abort(self) -> None:
        """End it now; the system, too, forgets what it was to send."""
        self._closing = True
        with suppress(OSError):
            self._transport.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _FORGET)
        self._transport.abort()

    def ended(self) -> None:
        """The connection is lost: nothing has to be given up any more."""
        self._closing = True
        if self._timer is not None:
            self._timer.cancel()

    def _begin_end(self) -> None:
        self._closing = True
        if self._timer is None:
            self._timer = self._loop.call_later(self._seconds, self.abort)
