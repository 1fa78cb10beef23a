"""Writing to the path that a user named, by one rule for all. Knows bytes and lines, nothing of what they mean.

What is there and is no regular file (a device, a FIFO) is opened and written, never replaced. Links are followed: what
they lead to is written, also when it is not there yet. A path that cannot be written is refused when it is looked at,
before anything is altered. What is written line by line is on disk line by line; what is written at once (`whole_into`)
is made beside its place and renamed.

A regular file is locked while lines are written to it: a second process that wants to write or replace it is refused.
"""

import errno
import os
import secrets
import select
import stat
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Self

from lopa.runtime.errors import BadInputError, LopaError, OutputFailedError
from lopa.runtime.files.file_lock import FileIsLockedError, lock_file
from lopa.runtime.files.held_signals import signals_held
from lopa.runtime.files.untrusted_input import said_by

_MAX_LINKS = 40
"""That a path may lead over, as Linux has it."""
_CANNOT_RENAME = (errno.EACCES, errno.EPERM, errno.EBUSY, errno.EXDEV)
"""A folder of somebody else's, or a file that is a mount point: a file in it can still be written in place."""


@dataclass(frozen=True)
class OutputPlace:
    """A path that can be written, as far as that shows without touching it."""

    path: Path
    status: os.stat_result | None
    """Of what the path leads to; None when nothing is there yet."""
    descriptor: int | None
    """The open file of this process that the path stands for: 1 for /dev/stdout."""

    @property
    def regular(self) -> bool:
        """Whether a regular file of its own is there or will be."""
        return self.descriptor is None and (self.status is None or stat.S_ISREG(self.status.st_mode))

    @property
    def target(self) -> Path:
        """Where all links lead to."""
        return Path(os.path.realpath(self.path))

    def is_same(self, other: os.stat_result | Self) -> bool:
        """Whether both are one file, whatever its names. Two names of a device, say /dev/null, do no harm."""
        if not isinstance(other, os.stat_result):
            if other.status is None or self.status is None:
                return other.status is self.status and other.target == self.target
            other = other.status
        mixes = any(kind(other.st_mode) for kind in (stat.S_ISREG, stat.S_ISFIFO, stat.S_ISBLK))
        return self.status is not None and mixes and os.path.samestat(self.status, other)


def place_of_output(path: Path) -> OutputPlace:
    """Look at `path`. Raises BadInputError when it cannot be written."""
    with _refused(path):
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
    """A file that takes lines; each is handed to the operating system whole before `write` returns.

    In a `with` block; a file that was made for it and got no line is removed when the block ends with an error.
    """

    def __init__(self, descriptor: int, place: OutputPlace | None, *, lockable: bool = True) -> None:
        """`place` None: standard output."""
        self._descriptor, self._place = descriptor, place
        self.lockable = lockable
        """False for a regular file that another process can write too, since its file system has no locks."""
        self._whole = place is not None and place.regular
        self._end = 0
        """Bytes that stay, of a regular file."""

    @classmethod
    def open(cls, place: OutputPlace) -> Self:
        """Open for writing and lock a regular file until it is closed; what it holds is left until `begin`.

        Raises BadInputError when the path cannot be written, or when another process writes the file.
        """
        with _refused(place.path):
            while True:
                descriptor = _opened(place)
                try:
                    lockable = not place.regular or lock_file(descriptor)
                    if not place.regular or _leads_to(place.target, descriptor):
                        return cls(descriptor, place, lockable=lockable)
                except BaseException:
                    os.close(descriptor)
                    raise
                os.close(descriptor)  # it was replaced or removed before it was locked: look again
                place = place_of_output(place.path)

    @classmethod
    def standard(cls) -> Self:
        """Standard output."""
        with _refused(Path("standard output")):
            return cls(os.dup(1), None)

    def begin(self, keep: int = 0) -> None:
        """Drop what a regular file holds, but for its first `keep` bytes. Raises OutputFailedError."""
        if self._whole:
            with self._failures():
                os.ftruncate(self._descriptor, keep)
                os.lseek(self._descriptor, keep, os.SEEK_SET)
            self._end = keep

    def write(self, line: str) -> None:
        """Write `line` and its end; a lone surrogate becomes its escape in JSON.

        Raises OutputFailedError for whatever the operating system says, and then a regular file ends with its last
        whole line; BrokenPipeError when nobody reads any more.
        """
        data = f"{line}\n".encode("utf-8", "backslashreplace")
        if not self._whole:
            with self._failures():
                _write_all(self._descriptor, data)
            return
        with signals_held(), self._failures():
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
                if os.fstat(self._descriptor).st_size == 0 and _leads_to(place.target, self._descriptor):
                    place.target.unlink()
        if kind is None:
            with self._failures():  # some file systems say at last that the disk is full
                os.close(self._descriptor)
        else:
            with suppress(OSError):
                os.close(self._descriptor)

    @contextmanager
    def _failures(self) -> Iterator[None]:
        with _failed("standard output" if self._place is None else self._place.path):
            yield


@contextmanager
def whole_into(path: Path) -> Iterator[Callable[[bytes], None]]:
    """A function that writes the one content of `path`, at once: a regular file has all of it or is as it was.

    Raises BadInputError when the path cannot be written or another process writes lines to it, before the block runs.
    The function raises OutputFailedError, or BadInputError for such a process.
    """
    place = place_of_output(path)
    if not place.regular:
        with OutputLines.open(place) as opened:
            yield lambda data: _write_typed(path, opened._descriptor, data)
        return
    with signals_held(), _refused(path), _locked(place, shared=True):
        try:
            os.close(_opened_beside(beside := _beside(place.target)))
            beside.unlink()
        except OSError:
            if place.status is None:  # what is there can be written in place
                raise
    yield lambda data: _write_regular(place, data)


def write_whole(path: Path, data: bytes) -> None:
    """As `whole_into`, for content that is there already."""
    with whole_into(path) as write:
        write(data)


def replace_file(path: Path, data: bytes) -> None:
    """Put a new file with `data` in the place of the file `path`, of this one name alone: readers see one or the other.

    The data is on the disk before it is renamed. Raises BadInputError for a path that cannot be written and
    OutputFailedError; then `path` is as it was.
    """
    place = place_of_output(path)
    if not place.regular:
        raise BadInputError(f"{path} is not a regular file", expected="a regular file", remedy="check the path")
    with signals_held(), _failed(path):
        _write_beside(place, data, sync=True)


def _write_regular(place: OutputPlace, data: bytes) -> None:
    with signals_held(), _failed(place.path):
        if place.status is not None and place.status.st_nlink > 1:
            _write_in_place(place, data)  # so that its other names stay names of it
            return
        try:
            with _locked(place, shared=True):  # several may replace it, each whole: the last one stays
                _write_beside(place, data)
        except OSError as error:
            if place.status is None or error.errno not in _CANNOT_RENAME:
                raise
            _write_in_place(place, data)


def _write_beside(place: OutputPlace, data: bytes, *, sync: bool = False) -> None:
    beside = _beside(place.target)
    descriptor = _opened_beside(beside)
    try:
        try:
            if place.status is not None:
                os.fchmod(descriptor, stat.S_IMODE(place.status.st_mode))
            _write_all(descriptor, data)
            if sync:
                os.fsync(descriptor)
        finally:
            os.close(descriptor)
        beside.replace(place.target)
    except BaseException:
        beside.unlink(missing_ok=True)
        raise


def _beside(target: Path) -> Path:
    """A new name, of a length that does not depend on the target's, which may be as long as names can be."""
    return target.with_name(f".lopa-{secrets.token_hex(8)}.partial")


def _opened_beside(beside: Path) -> int:
    return os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666)


def _write_in_place(place: OutputPlace, data: bytes) -> None:
    with _locked(place, shared=False):
        descriptor = os.open(place.path, os.O_WRONLY | os.O_TRUNC | os.O_CLOEXEC)
        try:
            _write_all(descriptor, data)
        finally:
            os.close(descriptor)


@contextmanager
def _locked(place: OutputPlace, *, shared: bool) -> Iterator[None]:
    """Hold the lock of the file that is at `place` now, if there is one that can be opened.

    Raises BadInputError when another process holds a lock that conflicts.
    """
    try:
        # Without blocking: a FIFO may have come there since.
        descriptor = os.open(place.path, os.O_WRONLY | os.O_CLOEXEC | os.O_NOCTTY | os.O_NONBLOCK)
    except OSError:
        descriptor = None
    try:
        if descriptor is not None:
            with _refused(place.path):
                lock_file(descriptor, shared=shared)
        yield
    finally:
        if descriptor is not None:
            os.close(descriptor)


def _leads_to(target: Path, descriptor: int) -> bool:
    """Return whether an open file is the one that is at `target` now."""
    try:
        return os.path.samestat(target.stat(), os.fstat(descriptor))
    except FileNotFoundError:
        return False


def _write_typed(path: Path, descriptor: int, data: bytes) -> None:
    with _failed(path):
        _write_all(descriptor, data)


def _opened(place: OutputPlace) -> int:
    """A descriptor; a FIFO is waited for until somebody reads, as the shell does."""
    if place.descriptor is not None:
        return os.dup(place.descriptor)
    flags = os.O_WRONLY | os.O_CLOEXEC | os.O_NOCTTY
    if place.status is None:
        return os.open(place.path, flags | os.O_CREAT, 0o666)
    return os.open(place.path, flags)  # without O_CREAT, which some folders refuse for what is there


def _write_all(descriptor: int, data: bytes) -> None:
    rest = memoryview(data)
    while rest:
        try:
            rest = rest[os.write(descriptor, rest) :]
        except BlockingIOError:  # somebody who shares it made it so
            select.select([], [descriptor], [])


def _own_descriptor(path: Path) -> int | None:
    """N where the path leads to /dev/fd/N: that is written where the process writes it, not opened once more."""
    own = os.path.realpath("/dev/fd")
    place = os.fspath(path)
    for _ in range(_MAX_LINKS):
        folder, name = os.path.split(place)
        if name.isdecimal() and os.path.realpath(folder or ".") == own:
            return int(name)
        if not os.path.islink(place):  # noqa: PTH114 (one link at a time: resolve() would go on to what is behind)
            return None
        place = os.path.join(folder, os.readlink(place))  # noqa: PTH115, PTH118
    return None


def _check_folder(folder: Path) -> None:
    """Raise OSError unless files can be made in `folder`."""
    if not stat.S_ISDIR(folder.stat().st_mode):
        raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR))
    if not os.access(folder, os.W_OK | os.X_OK):
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))


@contextmanager
def _refused(path: Path) -> Iterator[None]:
    """What goes wrong before anything was written is about the path that was given."""
    try:
        yield
    except FileIsLockedError as error:
        raise BadInputError(
            f"cannot write {path}: another process is writing it",
            expected="a file that no other process writes",
            remedy="wait until the other process has ended, or choose another path",
        ) from error
    except (OSError, ValueError) as error:
        raise BadInputError(
            f"cannot write {path}: {said_by(error)}",
            expected="a file that can be written",
            remedy="choose another path",
        ) from error


@contextmanager
def _failed(path: Path | str) -> Iterator[None]:
    """What the operating system says while we write ends the run; a reader that went away is no failure."""
    try:
        yield
    except (BrokenPipeError, LopaError):
        raise
    except OSError as error:
        raise OutputFailedError(
            f"writing {path} failed: {said_by(error)}",
            expected="a file system that takes what is written",
            remedy="make room or choose another place; what was written before is whole",
        ) from error
