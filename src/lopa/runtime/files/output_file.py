"""Write to paths that users give.

A special file (device, FIFO) is opened and written, but never replaced. Links are followed, even to targets that do not
exist yet. An unwritable path raises an error before anything changes. Line output reaches the operating system line by
line. Content written at once (`write_atomically`) goes to a temporary file, which then replaces the path.

A regular file is locked while lines are written. A second process that writes or replaces it gets an error. The lock is
taken with flock. It belongs to the file, not to its name, so links and relative paths lead to the same lock. The kernel
releases it when the process ends, so there are no stale locks.
"""

import errno
import os
import secrets
import select
import signal
import stat
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Self

from lopa.runtime.errors import BadInputError, LopaError, OutputFailedError, error_text

try:
    import fcntl
except ImportError:  # not available on Windows and WebAssembly
    fcntl = None  # type: ignore[assignment]

_MAX_LINKS = 40
"""Maximum number of links in a path, as on Linux."""
_HELD_ERRORS = (errno.EWOULDBLOCK, errno.EAGAIN, errno.EACCES)
"""Error numbers for a lock held by another process. Some network file systems return EACCES."""
_UNSUPPORTED = (errno.ENOLCK, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS, errno.EINVAL)
_SIGNALS = (signal.SIGINT, signal.SIGTERM)


@dataclass(frozen=True)
class OutputPlace:
    """A path that seems writable, checked without opening it."""

    path: Path
    status: os.stat_result | None
    """Status of the link's target, or None if it does not exist yet."""
    descriptor: int | None
    """File descriptor of this process that the path names, e.g. 1 for /dev/stdout."""

    @property
    def regular(self) -> bool:
        """True if the target is or will be a regular file that is opened by name."""
        return self.descriptor is None and (self.status is None or stat.S_ISREG(self.status.st_mode))

    @property
    def target(self) -> Path:
        """Path after resolving all links."""
        return Path(os.path.realpath(self.path))

    def is_same(self, other: os.stat_result | Self) -> bool:
        """Return True if both are the same file. Two names of a character device such as /dev/null count as
        different.
        """
        if not isinstance(other, os.stat_result):
            if other.status is None or self.status is None:
                return other.status is self.status and other.target == self.target
            other = other.status
        mixes = any(kind(other.st_mode) for kind in (stat.S_ISREG, stat.S_ISFIFO, stat.S_ISBLK))
        return self.status is not None and mixes and os.path.samestat(self.status, other)


def inspect_output_path(path: Path) -> OutputPlace:
    """Inspect `path`. Raises BadInputError if it cannot be written."""
    with _bad_path_errors(path):
        descriptor = _own_descriptor(path)
        try:
            status = os.fstat(descriptor) if descriptor is not None else path.stat()
        except FileNotFoundError:
            status = None
        place = OutputPlace(path, status, descriptor)
        if status is None:
            _check_folder(place.target.parent)
        elif stat.S_ISDIR(status.st_mode):
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR))
        elif stat.S_ISSOCK(status.st_mode) and descriptor is None:
            raise OSError(errno.ENXIO, "it is a socket")
        elif descriptor is None and not os.access(path, os.W_OK):
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))
        return place


class OutputLines:
    """A file to which lines are written. `write` returns after the operating system has accepted the whole line.

    Use it in a `with` block. If the block fails before the first line, a newly created file is removed.
    """

    def __init__(self, descriptor: int, place: OutputPlace | None, *, lockable: bool = True) -> None:
        """Create the lines over `descriptor`. A `place` of None is standard output."""
        self._descriptor, self._place = descriptor, place
        self.lockable = lockable
        """False for a regular file on a file system without locks, which another process could write too."""
        self._whole = place is not None and place.regular
        self._end = 0
        """Bytes of a regular file that a failed write keeps."""

    @classmethod
    def open(cls, place: OutputPlace) -> Self:
        """Open for writing and lock a regular file until it is closed. Its content stays until `begin`.

        Raises BadInputError if the path cannot be written, or if another process writes the file.
        """
        with _bad_path_errors(place.path):
            while True:
                descriptor = _open_descriptor(place)
                try:
                    lockable = not place.regular or lock_file(descriptor)
                    if not place.regular or _is_open_file(place.target, descriptor):
                        return cls(descriptor, place, lockable=lockable)
                except BaseException:
                    os.close(descriptor)
                    raise
                os.close(descriptor)  # it was replaced or removed before it was locked
                place = inspect_output_path(place.path)

    @classmethod
    def standard(cls) -> Self:
        """Return an OutputLines over standard output."""
        with _bad_path_errors(Path("standard output")):
            return cls(os.dup(1), None)

    def begin(self, keep: int = 0) -> None:
        """Truncate a regular file to its first `keep` bytes. Raises OutputFailedError."""
        if self._whole:
            with self._output_errors():
                os.ftruncate(self._descriptor, keep)
                os.lseek(self._descriptor, keep, os.SEEK_SET)
            self._end = keep

    def write(self, line: str) -> None:
        """Write `line` and a newline. A lone surrogate is written as its JSON escape.

        Raises OutputFailedError for any error of the operating system; a regular file then ends with its last complete
        line. Raises BrokenPipeError if the reader has closed the pipe.
        """
        data = f"{line}\n".encode("utf-8", "backslashreplace")
        if not self._whole:
            with self._output_errors():
                _write_all(self._descriptor, data)
            return
        with defer_signals(), self._output_errors():
            try:
                _write_all(self._descriptor, data)
            except OSError:
                with suppress(OSError):
                    os.ftruncate(self._descriptor, self._end)
                raise
            self._end += len(data)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        place = self._place
        if kind is not None and place is not None and place.status is None and self._end == 0:
            with suppress(OSError):
                if os.fstat(self._descriptor).st_size == 0 and _is_open_file(place.target, self._descriptor):
                    place.target.unlink()
        if kind is None:
            with self._output_errors():  # some file systems report a full disk only here
                os.close(self._descriptor)
        else:
            with suppress(OSError):
                os.close(self._descriptor)

    @contextmanager
    def _output_errors(self) -> Iterator[None]:
        with _output_errors("standard output" if self._place is None else self._place.path):
            yield


def check_replaceable(path: Path) -> OutputPlace:
    """Inspect `path`. Raises BadInputError if write_atomically cannot write it, as far as that shows before."""
    place = inspect_output_path(path)
    if place.regular:
        with _bad_path_errors(path), _locked(place):
            _check_folder(place.target.parent)
    return place


def write_atomically(path: Path, data: bytes) -> None:
    """Write the whole content of `path`: a new file replaces a regular one. Other hard links keep the old content.

    The data is synced to disk before the rename. Raises BadInputError if the path cannot be written, or another process
    writes lines to it. Raises OutputFailedError if writing fails. A regular file then stays unchanged.
    """
    place = check_replaceable(path)
    if not place.regular:
        with OutputLines.open(place) as opened, _output_errors(path):
            _write_all(opened._descriptor, data)
        return
    # The name has a fixed length, because the target's name may already be as long as allowed.
    temporary = place.target.with_name(f".lopa-{secrets.token_hex(8)}.partial")
    with defer_signals(), _output_errors(path), _locked(place):
        with _bad_path_errors(path):
            descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666)
        try:
            try:
                if place.status is not None:
                    os.fchmod(descriptor, stat.S_IMODE(place.status.st_mode))
                _write_all(descriptor, data)
                os.fsync(descriptor)
            finally:
                os.close(descriptor)
            temporary.replace(place.target)
        except BaseException:
            temporary.unlink(missing_ok=True)
            raise


@contextmanager
def _locked(place: OutputPlace) -> Iterator[None]:
    """Hold a shared lock of the file at `place`, if there is one that can be opened. Several processes may replace it.

    Raises BadInputError if another process holds a conflicting lock.
    """
    try:
        # Non-blocking, because the file may have become a FIFO.
        descriptor = os.open(place.path, os.O_WRONLY | os.O_CLOEXEC | os.O_NOCTTY | os.O_NONBLOCK)
    except OSError:
        descriptor = None
    try:
        if descriptor is not None:
            with _bad_path_errors(place.path):
                lock_file(descriptor, shared=True)
        yield
    finally:
        if descriptor is not None:
            os.close(descriptor)


def _is_open_file(target: Path, descriptor: int) -> bool:
    """Return True if `target` is the open file `descriptor`."""
    try:
        return os.path.samestat(target.stat(), os.fstat(descriptor))
    except FileNotFoundError:
        return False


def _open_descriptor(place: OutputPlace) -> int:
    """Return a descriptor for writing. Like the shell, opening a FIFO waits for a reader."""
    if place.descriptor is not None:
        return os.dup(place.descriptor)
    flags = os.O_WRONLY | os.O_CLOEXEC | os.O_NOCTTY
    if place.status is None:
        return os.open(place.path, flags | os.O_CREAT, 0o666)
    return os.open(place.path, flags)  # no O_CREAT: some folders reject it for existing files


def _write_all(descriptor: int, data: bytes) -> None:
    rest = memoryview(data)
    while rest:
        try:
            rest = rest[os.write(descriptor, rest) :]
        except BlockingIOError:  # the descriptor is non-blocking
            select.select([], [descriptor], [])


def _own_descriptor(path: Path) -> int | None:
    """Return N if the path leads to /dev/fd/N. It is then written through that descriptor, not opened again."""
    own = os.path.realpath("/dev/fd")
    place = os.fspath(path)
    for _ in range(_MAX_LINKS):
        folder, name = os.path.split(place)
        if name.isdecimal() and os.path.realpath(folder or ".") == own:
            return int(name)
        if not os.path.islink(place):  # noqa: PTH114 (one link at a time; resolve() would follow all)
            return None
        place = os.path.join(folder, os.readlink(place))  # noqa: PTH115, PTH118
    return None


def _check_folder(folder: Path) -> None:
    """Raise OSError unless files can be created in `folder`."""
    if not stat.S_ISDIR(folder.stat().st_mode):
        raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR))
    if not os.access(folder, os.W_OK | os.X_OK):
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))


@contextmanager
def _bad_path_errors(path: Path) -> Iterator[None]:
    """Convert errors before the first write to BadInputError about the given path."""
    try:
        yield
    except FileIsLockedError as error:
        raise BadInputError(
            f"cannot write {path}: another process is writing it",
            expected="a file that no other process writes",
            remedy="wait until the other process ends, or choose another path",
        ) from error
    except (OSError, ValueError) as error:
        raise BadInputError(
            f"cannot write {path}: {error_text(error)}",
            expected="a writable file",
            remedy="choose another path",
        ) from error


@contextmanager
def _output_errors(path: Path | str) -> Iterator[None]:
    """Convert errors during writing to OutputFailedError. BrokenPipeError passes, because a closed pipe is no
    failure.
    """
    try:
        yield
    except (BrokenPipeError, LopaError):
        raise
    except OSError as error:
        raise OutputFailedError(
            f"writing {path} failed: {error_text(error)}",
            expected="a file system that accepts the output",
            remedy="free disk space or choose another path; earlier output is complete",
        ) from error


@contextmanager
def defer_signals() -> Iterator[None]:
    """Defer SIGINT and SIGTERM until the block has ended. Use it for short work that does not wait. It has no effect
    outside the main thread, which alone receives signals.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    received: list[int] = []
    before = {number: signal.signal(number, lambda number, _: received.append(number)) for number in _SIGNALS}
    try:
        yield
    finally:
        for number, handler in before.items():
            # A handler is None if it was not set from Python. Python cannot restore such a handler.
            signal.signal(number, signal.SIG_DFL if handler is None else handler)
        for each in received:
            signal.raise_signal(each)


class FileIsLockedError(Exception):
    """Another process, or another open file of this process, holds a conflicting lock."""


def lock_file(descriptor: int, *, shared: bool = False) -> bool:
    """Lock an open file without waiting, until its descriptor is closed.

    An exclusive lock excludes all others; a shared lock excludes exclusive ones. The result is False if the platform or
    file system has no locks. Raises FileIsLockedError for a conflict and OSError for any other failure.
    """
    if fcntl is None:
        return False
    kind = fcntl.LOCK_SH if shared else fcntl.LOCK_EX
    try:
        fcntl.flock(descriptor, kind | fcntl.LOCK_NB)
    except OSError as error:
        if error.errno in _HELD_ERRORS:
            raise FileIsLockedError from error
        if error.errno in _UNSUPPORTED:
            return False
        raise
    return True
