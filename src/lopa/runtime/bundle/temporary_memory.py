"""Memory for matrices that a session computes when it opens, in an unnamed file that the system may write to disk."""

import mmap
import os
import tempfile

from lopa.runtime.errors import BadInputError, raise_if_from_handler

_ALIGNMENT = 64
"""Alignment of a matrix, in bytes: one cache line."""


def aligned_size(size: int) -> int:
    """Return `size`, in bytes, rounded up so that the next matrix is aligned."""
    return -(-size // _ALIGNMENT) * _ALIGNMENT


def temporary_memory(size: int, content: str, remedy: str) -> mmap.mmap:
    """Return zeroed memory of `size` bytes, in a file that is deleted with the last reference.

    Raises BadInputError with `content` and `remedy` if the temporary folder is full or cannot be written.
    """
    try:
        with tempfile.TemporaryFile(prefix="lopa-matrices-") as file:
            if hasattr(os, "posix_fallocate"):
                os.posix_fallocate(file.fileno(), 0, size)  # fails here if the disk is full
            else:
                file.truncate(size)
            return mmap.mmap(file.fileno(), size)
    except OSError as error:
        raise_if_from_handler(error)
        raise BadInputError(
            f"cannot make a temporary file of {size / 1e9:.2f} GB for {content}: {error}",
            expected="a temporary folder with that much space while the bundle is open",
            remedy=remedy,
        ) from error
