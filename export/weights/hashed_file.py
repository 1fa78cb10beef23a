"""A new file whose sha256 is known when it is written. Does not know what is written."""

import hashlib
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import TracebackType
from typing import Self

_PART = 1 << 23
"""Bytes written, and in the meantime hashed, at a time."""


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
