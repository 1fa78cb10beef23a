"""sha256 of files, computed on a thread while other work reads the same files. Does not know what is in them.

On a machine that keeps what was read for a while, both readers together read the disk once.
"""

import hashlib
import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

from lopa.runtime.errors import BadInputError

_PIECE = 1 << 22
"""Bytes read and hashed at a time."""


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
