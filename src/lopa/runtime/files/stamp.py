"""Stamps of files, which show that a path no longer leads to the file that was read or checked."""

import os
from collections.abc import Mapping
from pathlib import Path

from lopa.runtime.errors import BadInputError

Stamp = tuple[int, int, int]
"""Size in bytes, and the times of the last change of content and of the last change of any kind, in nanoseconds.

Inode numbers are left out, because file systems over a network may give a file another one at any time.
"""


def stamp_from_status(status: os.stat_result) -> Stamp:
    """Return the stamp in the result of stat or fstat."""
    return status.st_size, status.st_mtime_ns, status.st_ctime_ns


def check_stamps(folder: Path, stamps: Mapping[str, Stamp]) -> None:
    """Raise BadInputError if a file or folder inside `folder` is no longer the one with its stamp."""
    for name, stamp in stamps.items():
        try:
            found = stamp_from_status(folder.joinpath(name).stat())
        except OSError:
            found = None
        if found != stamp:
            raise BadInputError(
                f"{folder.joinpath(name)} changed while it was opened",
                expected="files that stay as they are until the bundle is open",
                remedy="open it again; replace a bundle by a new folder, as docs/how-to/deploy.md describes",
            )
