"""SHA-256 of files, computed on another thread while a file is written or while other work reads it.

If the operating system caches files, two concurrent readers need only one read of the disk.
"""

import hashlib
import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import Self

from lopa.runtime.errors import BadInputError

_WRITE_BYTES = 1 << 23
"""Bytes written and hashed at a time."""
_READ_BYTES = 1 << 22
"""Bytes read and hashed at a time."""


class HashedFile:
    """A new file at `path`, open inside the `with` block. Another thread hashes the bytes as they are written."""

    def __init__(self, path: Path) -> None:
        self.size = 0
        """Bytes written so far."""
        self._digest = hashlib.sha256()
        self._file = path.open("xb", buffering=0)
        self._hasher = ThreadPoolExecutor(1, thread_name_prefix="sha256")

    @property
    def sha256(self) -> str:
        """Hex digest of all bytes written so far."""
        return self._digest.hexdigest()

    def write(self, data: memoryview) -> int:
        """Write the beginning of `data`, contiguous bytes, and return their count.

        Raises OSError, e.g. for a full disk.
        """
        part = data[:_WRITE_BYTES]
        hashed = self._hasher.submit(self._digest.update, part)
        try:
            done = 0
            while done < len(part):
                done += self._file.write(part[done:])
        finally:
            hashed.result()
        self.size += len(part)
        return len(part)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._hasher.shutdown()
        self._file.close()


@contextmanager
def digests_in_background(paths: Sequence[Path]) -> Iterator["Future[dict[Path, str]]"]:
    """Yield a future of the hex SHA-256 of every path, computed one after another while the block runs.

    Leaving the block early cancels the work. The future raises BadInputError for a file that cannot be read.
    """
    cancelled = threading.Event()
    with ThreadPoolExecutor(1, thread_name_prefix="source digests") as pool:
        try:
            yield pool.submit(_digests, paths, cancelled)
        finally:
            cancelled.set()


def _digests(paths: Sequence[Path], cancelled: threading.Event) -> dict[Path, str]:
    return {path: _digest(path, cancelled) for path in paths}


def _digest(path: Path, cancelled: threading.Event) -> str:
    """Return the hex SHA-256 of a file. After a cancellation the result is meaningless and unused."""
    digest = hashlib.sha256()
    buffer = bytearray(_READ_BYTES)
    view = memoryview(buffer)
    try:
        with path.open("rb", buffering=0) as file:
            while not cancelled.is_set() and (count := file.readinto(buffer)):
                digest.update(view[:count])
    except OSError as error:
        raise BadInputError(
            f"{path} cannot be read: {error.strerror}",
            expected="a file that does not change during the export",
            remedy="copy the checkpoint again, or check the disk",
        ) from error
    return digest.hexdigest()
