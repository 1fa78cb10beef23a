"""sha256 of files on another thread: of a new file while it is written, of others while they are read for other work.

Does not know what is in them. On a machine that keeps what was read for a while, two readers together read the disk
once.
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

_PART = 1 << 23
"""Bytes written, and in the meantime hashed, at a time."""
_PIECE = 1 << 22
"""Bytes read and hashed at a time."""


class HashedFile:
    """The new file `path`, open inside the `with` block; every byte is hashed on another thread while it is written."""

    def __init__(self, path: Path) -> None:
        self.size = 0
        """Bytes written so far."""
        self._digest = hashlib.sha256()
        self._file = path.open("xb", buffering=0)
        self._hasher = ThreadPoolExecutor(1, thread_name_prefix="sha256")

    @property
    def sha256(self) -> str:
        """Hex digest of what was written so far."""
        return self._digest.hexdigest()

    def write(self, data: memoryview) -> int:
        """Write the beginning of `data`, contiguous bytes; says how many. Raises OSError for a full disk."""
        part = data[:_PART]
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
    """The hex sha256 of every path, one after the other, as a result that can be waited for inside the block.

    Leaving the block early gives the work up. Waiting raises BadInputError when a file cannot be read.
    """
    given_up = threading.Event()
    with ThreadPoolExecutor(1, thread_name_prefix="source digests") as pool:
        try:
            yield pool.submit(_digests, paths, given_up)
        finally:
            given_up.set()


def _digests(paths: Sequence[Path], given_up: threading.Event) -> dict[Path, str]:
    return {path: _digest(path, given_up) for path in paths}


def _digest(path: Path, given_up: threading.Event) -> str:
    """Of as much as was read before it was given up; then nobody waits for it."""
    digest = hashlib.sha256()
    buffer = bytearray(_PIECE)
    view = memoryview(buffer)
    try:
        with path.open("rb", buffering=0) as file:
            while not given_up.is_set() and (count := file.readinto(buffer)):
                digest.update(view[:count])
    except OSError as error:
        raise BadInputError(
            f"{path} cannot be read: {error.strerror}",
            expected="a file that stays as it is until the export is done",
            remedy="copy the checkpoint again, or check the disk",
        ) from error
    return digest.hexdigest()
