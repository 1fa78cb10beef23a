"""Open connections of a server: a limit below that of open files, and their end when the server stops.

This module does not depend on HTTP.
"""

import logging
import resource
import time
from contextlib import suppress
from typing import Protocol

_LOG = logging.getLogger(__name__)
_MAX_FILES = 16_384
"""Limit of open files that a process sets itself. Every open connection takes memory."""
_SPARE_FILES = 128
"""Files that are left for bundles, logs and helper processes."""
_WARN_SECONDS = 1.0


class Connection(Protocol):
    """A connection that can be closed while it is idle."""

    def hang_up(self) -> None:
        """Close the connection."""


class OpenConnections:
    """Connections of a server, at most `limit`. A new one takes the place of the one that has been idle longest."""

    is_closing = False
    """True once every connection closes after its answer."""

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self._idle: dict[Connection, None] = {}
        """Connections without a request that is being answered, the one idle longest first."""
        self._warned = -_WARN_SECONDS

    def add(self, connection: Connection, count: int) -> None:
        """Add a connection, the last of `count`. Above the limit, close an idle one, or this one if none is idle."""
        if count > self.limit:
            closed = next(iter(self._idle), connection)
            self._warn("idle" if closed in self._idle else "new")
            self.remove(closed)
            closed.hang_up()
            if closed is connection:
                return
        self.mark_idle(connection)

    def mark_idle(self, connection: Connection) -> None:
        """Let a later connection take the place of this one."""
        self.remove(connection)
        self._idle[connection] = None

    def remove(self, connection: Connection) -> None:
        """Keep the connection because a request is being answered, or forget it because it is lost."""
        self._idle.pop(connection, None)

    def _warn(self, kind: str) -> None:
        if time.monotonic() - self._warned >= _WARN_SECONDS:
            self._warned = time.monotonic()
            _LOG.warning("%d connections, closing %s ones; raise the limit of open files (ulimit -n)", self.limit, kind)


def max_connections() -> int:
    """Raise this process's soft limit of open files as far as allowed, and return the connections that fit below it."""
    soft, hard = (
        2**31 if each == resource.RLIM_INFINITY else each for each in resource.getrlimit(resource.RLIMIT_NOFILE)
    )
    wanted = min(hard, _MAX_FILES)
    if wanted > soft:
        with suppress(ValueError, OSError):  # a sandbox may refuse it
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, resource.getrlimit(resource.RLIMIT_NOFILE)[1]))
            soft = wanted
    return max(1, soft - min(_SPARE_FILES, soft // 2))
