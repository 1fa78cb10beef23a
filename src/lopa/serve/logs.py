"""The log of a server: lines of text or JSON, written by a thread so that no request waits for them. Knows no HTTP."""

import json
import logging
import os
import queue
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from datetime import UTC, datetime
from typing import Any, Literal, get_args

LogFormat = Literal["text", "json"]
LOG_FORMATS: tuple[LogFormat, ...] = get_args(LogFormat)
_PACKAGE = __name__.rpartition(".")[0]
OPERATOR = f"{_PACKAGE}.operator"
"""Logger of what the operator is told: that the server is ready, that it stops. Text without time and level."""
ACCESS = f"{_PACKAGE}.access"
"""Logger with a line for each request, at level INFO. A record may have `fields`, which JSON lines show."""
REQUEST_ID: ContextVar[str | None] = ContextVar("REQUEST_ID", default=None)
"""Name of the request that the running task answers."""
_MAX_WAITING = 10_000
"""Lines that wait to be written; further ones are dropped."""
_MAX_CHARACTERS = 16_384
"""Maximum characters of a line: longer than any traceback."""
_LAST_SECONDS = 2.0
"""Time in which waiting lines are written at the end."""


@contextmanager
def log_to_descriptor(descriptor: int, form: LogFormat, *, quiet: bool, access: bool) -> Iterator[None]:
    """Write what is logged to the file `descriptor`: warnings, what the operator is told unless `quiet`, and a line for
    each request with `access`. Lines that the system does not take are dropped, counted, and told of later."""
    handler = _LineWriter(descriptor)
    handler.setFormatter(_JsonFormatter() if form == "json" else _TextFormatter())
    root = logging.getLogger()
    levels = {OPERATOR: logging.WARNING if quiet else logging.INFO, ACCESS: logging.INFO if access else logging.ERROR}
    before = {name: logging.getLogger(name).level for name in levels}
    root.addHandler(handler)
    for name, level in levels.items():
        logging.getLogger(name).setLevel(level)
    try:
        yield
    finally:
        for name, level in before.items():
            logging.getLogger(name).setLevel(level)
        root.removeHandler(handler)
        handler.close()


class _TextFormatter(logging.Formatter):
    """time LEVEL logger: message [request]; of the operator's lines the message alone."""

    def format(self, record: logging.LogRecord) -> str:
        if record.name == OPERATOR:
            return ("warning: " if record.levelno == logging.WARNING else "") + record.getMessage()
        request = REQUEST_ID.get()
        behind = "" if request is None or request in record.getMessage() else f" [{request}]"
        return f"{_time(record)} {record.levelname} {record.name}: {record.getMessage()}{behind}{_trace(record)}"


class _JsonFormatter(logging.Formatter):
    """An object a line."""

    def format(self, record: logging.LogRecord) -> str:
        told: dict[str, Any] = {
            "time": _time(record),
            "level": record.levelname,
            "logger": record.name,
            "message": record.getMessage(),
            "request_id": REQUEST_ID.get(),
            **getattr(record, "fields", {}),
        }
        trace = _trace(record).strip()
        return json.dumps({**told, "exception": trace} if trace else told)


class _LineWriter(logging.Handler):
    """Formats where a line is logged, and writes on a thread of its own."""

    def __init__(self, descriptor: int) -> None:
        super().__init__()
        self._descriptor = descriptor
        self._waiting: queue.Queue[str | None] = queue.Queue(_MAX_WAITING)
        self.lost = 0
        """Lines that could not be written, and that the log has not told of yet."""
        self._at_line_start = True
        self._thread = threading.Thread(target=self._write_all, name="lopa-log", daemon=True)
        self._thread.start()

    def emit(self, record: logging.LogRecord) -> None:
        try:
            line = self.format(record)
        except Exception:  # a message and its arguments do not fit: no reason to end a request
            line = self._note("a line of %s could not be made", record.name)
        self._put(line)

    def close(self) -> None:
        """Write what waits, for a time: a pipe that nobody reads is given up."""
        try:
            self._waiting.put(None, timeout=_LAST_SECONDS)
        except queue.Full:
            return
        self._thread.join(_LAST_SECONDS)
        super().close()

    def _put(self, line: str | None) -> None:
        try:
            self._waiting.put_nowait(line)
        except queue.Full:
            self.lost += 1

    def _write_all(self) -> None:
        while (line := self._waiting.get()) is not None:
            if self.lost:
                if not self._is_written(self._note("%d lines of the log could not be written", self.lost)):
                    self.lost += 1
                    continue
                self.lost = 0
            if not self._is_written(line):
                self.lost += 1

    def _note(self, text: str, *args: object) -> str:
        """A line about the log itself."""
        return self.format(logging.LogRecord(__name__, logging.WARNING, __file__, 0, text, args, None))

    def _is_written(self, line: str) -> bool:
        """Return whether the system took the whole line. After half a line the next one starts on a new line."""
        content = ("" if self._at_line_start else "\n") + line[:_MAX_CHARACTERS] + "\n"
        left = content.encode("utf-8", "backslashreplace")
        try:
            while left:
                written = os.write(self._descriptor, left)
                left, self._at_line_start = left[written:], written == len(left)
        except OSError:  # a full disk, a pipe whose reader has gone: the answers go on
            return False
        return True


def _time(record: logging.LogRecord) -> str:
    """UTC, as RFC 3339 has it."""
    return datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def _trace(record: logging.LogRecord) -> str:
    if not record.exc_info or record.exc_info[0] is None:
        return ""
    return "\n" + logging.Formatter().formatException(record.exc_info)
