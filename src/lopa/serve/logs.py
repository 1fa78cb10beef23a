"""Server log of text or JSON lines.

A thread writes the lines, so requests never wait for the log. This module does not depend on HTTP.
"""

import json
import logging
import os
import queue
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from datetime import UTC, datetime
from typing import Any, Literal, get_args

LogFormat = Literal["text", "json"]
LOG_FORMATS: tuple[LogFormat, ...] = get_args(LogFormat)
_PACKAGE = __name__.rpartition(".")[0]
OPERATOR = f"{_PACKAGE}.operator"
"""Logger of messages to the operator, such as startup and shutdown. Text lines have no time and level."""
ACCESS = f"{_PACKAGE}.access"
"""Logger that writes one line per request, at level INFO. JSON lines also show a record's `fields`."""
REQUEST_ID: ContextVar[str | None] = ContextVar("REQUEST_ID", default=None)
"""ID of the request that the running task answers."""
SPAN_IDS: ContextVar[Mapping[str, str] | None] = ContextVar("SPAN_IDS", default=None)
"""trace_id, span_id and trace_flags of the span of that request, in lowercase hexadecimal; None without traces."""
_MAX_WAITING = 10_000
"""Maximum lines that wait to be written; further lines are dropped."""
_MAX_CHARACTERS = 16_384
"""Maximum characters of a line. No traceback is longer."""
_LAST_SECONDS = 2.0
"""Maximum seconds for writing the waiting lines at shutdown."""


@contextmanager
def log_to_descriptor(descriptor: int, form: LogFormat, *, quiet: bool, access: bool) -> Iterator[None]:
    """Write log records to the file `descriptor`: warnings, operator messages unless `quiet`, and a line per request
    with `access`.

    Lines that the system does not accept are dropped and counted. A later line reports the count.
    """
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
    """Format records as `time LEVEL logger: message [request]`. Operator messages have no other fields."""

    def format(self, record: logging.LogRecord) -> str:
        if record.name == OPERATOR:
            return ("warning: " if record.levelno == logging.WARNING else "") + record.getMessage()
        request = REQUEST_ID.get()
        suffix = "" if request is None or request in record.getMessage() else f" [{request}]"
        return f"{_time(record)} {record.levelname} {record.name}: {record.getMessage()}{suffix}{_trace(record)}"


class _JsonFormatter(logging.Formatter):
    """Format each record as a JSON object on one line."""

    def format(self, record: logging.LogRecord) -> str:
        fields: dict[str, Any] = {
            "time": _time(record),
            "level": record.levelname,
            "logger": record.name,
            "message": record.getMessage(),
            "request_id": REQUEST_ID.get(),
            **(SPAN_IDS.get() or {}),
            **getattr(record, "fields", {}),
        }
        trace = _trace(record).strip()
        return json.dumps({**fields, "exception": trace} if trace else fields)


class _LineWriter(logging.Handler):
    """Handler that formats in the calling thread and writes on its own thread."""

    def __init__(self, descriptor: int) -> None:
        super().__init__()
        self._descriptor = descriptor
        self._waiting: queue.Queue[str | None] = queue.Queue(_MAX_WAITING)
        self.lost = 0
        """Dropped lines that the log has not reported yet."""
        self._at_line_start = True
        self._thread = threading.Thread(target=self._write_all, name="lopa-log", daemon=True)
        self._thread.start()

    def emit(self, record: logging.LogRecord) -> None:
        try:
            line = self.format(record)
        except Exception:  # a message that does not fit its arguments must not fail a request
            line = self._note("a record of %s could not be formatted", record.name)
        self._put(line)

    def close(self) -> None:
        """Write waiting lines for up to _LAST_SECONDS, since a pipe may have no reader."""
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
                if not self._is_written(self._note("%d log lines could not be written", self.lost)):
                    self.lost += 1
                    continue
                self.lost = 0
            if not self._is_written(line):
                self.lost += 1

    def _note(self, text: str, *args: object) -> str:
        """Return a formatted line about the log itself."""
        return self.format(logging.LogRecord(__name__, logging.WARNING, __file__, 0, text, args, None))

    def _is_written(self, line: str) -> bool:
        """Return whether the system accepted the whole line. After a partial write the next line starts on a new
        line."""
        content = ("" if self._at_line_start else "\n") + line[:_MAX_CHARACTERS] + "\n"
        left = content.encode("utf-8", "backslashreplace")
        try:
            while left:
                written = os.write(self._descriptor, left)
                left, self._at_line_start = left[written:], written == len(left)
        except OSError:  # a full disk or a closed pipe must not stop the server
            return False
        return True


def _time(record: logging.LogRecord) -> str:
    """Return the record's time in UTC, formatted by RFC 3339."""
    return datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def _trace(record: logging.LogRecord) -> str:
    if not record.exc_info or record.exc_info[0] is None:
        return ""
    return "\n" + logging.Formatter().formatException(record.exc_info)
