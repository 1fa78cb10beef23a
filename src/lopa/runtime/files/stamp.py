"""Stamps of files, which show that a path no longer leads to the file that was read or checked."""

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from lopa.runtime.errors import BadInputError, EngineFailedError, LopaError, errors_as_bad_input, raise_if_from_handler

Stamp = tuple[int, ...]
"""Size in bytes, and the time of the last change of content in nanoseconds. A strict stamp also has the time of the
last change of any kind. Nobody can set it, but a new hard link changes it too.

Inode numbers are left out, because file systems over a network may give a file another one at any time.
"""


def stamp_from_status(status: os.stat_result, *, is_strict: bool = False) -> Stamp:
    """Return the stamp in the result of stat or fstat."""
    times = (status.st_mtime_ns, status.st_ctime_ns)
    return status.st_size, *(times if is_strict else times[:1])


def check_stamps(folder: Path, stamps: Mapping[str, Stamp]) -> None:
    """Raise BadInputError if a file or folder inside `folder` is no longer the one with its stamp."""
    for name, stamp in stamps.items():
        try:
            found = stamp_from_status(folder.joinpath(name).stat(), is_strict=True)
        except OSError as error:
            raise_if_from_handler(error)
            found = ()
        if found[: len(stamp)] != stamp:
            raise changed_file(folder.joinpath(name))


def changed_file(path: Path) -> BadInputError:
    """Return the error for a file that is no longer the one that was read."""
    return BadInputError(
        f"{path} changed while it was opened",
        expected="files that stay as they are until the bundle is open",
        remedy="open it again; replace a bundle by a new folder, as docs/how-to/deploy.md describes",
    )


class MappedFile:
    """A file whose content must stay the same while it is mapped. A file that is renamed over it changes nothing."""

    def __init__(self, path: Path) -> None:
        """Hold `path` until this object is deleted. Raises BadInputError if it cannot be opened."""
        with errors_as_bad_input(str(path), expected="a readable file", remedy="check the path"):
            self._descriptor = os.open(path, os.O_RDONLY)
        self._name, self._stamp = path.name, stamp_from_status(os.fstat(self._descriptor))

    def check(self) -> None:
        """Raise EngineFailedError if somebody has written to the file. Reading a truncated one would end the process.

        This takes microseconds. It cannot see what happens later.
        """
        if stamp_from_status(os.fstat(self._descriptor)) != self._stamp:
            raise EngineFailedError(
                f"{self._name} was changed while the bundle was open",
                expected="files that stay as they are while a bundle is open",
                remedy="copy the bundle into a new folder, as docs/how-to/deploy.md describes, and open that",
            )

    def __del__(self) -> None:
        """Close the file."""
        if "_descriptor" in vars(self):
            os.close(self._descriptor)


class HeldFolder:
    """A folder that stays the same while others rename it or a folder above it, on systems with /proc."""

    def __init__(self, folder: Path) -> None:
        """Hold `folder` until this object is deleted. Raises BadInputError if it cannot be opened."""
        with errors_as_bad_input(str(folder), expected="a bundle folder", remedy="check the path"):
            self._descriptor = os.open(folder, os.O_RDONLY)
        self.folder = folder
        held = Path("/proc/self/fd", str(self._descriptor))
        self.path = held if held.is_dir() else folder
        """Path by which the folder's files are opened."""

    def __del__(self) -> None:
        """Close the folder."""
        if "_descriptor" in vars(self):
            os.close(self._descriptor)

    @contextmanager
    def errors_by_name(self) -> Iterator[None]:
        """Name the folder as usual in errors of the block."""
        try:
            yield
        except LopaError as error:
            raise error.with_received(error.received.replace(str(self.path), str(self.folder))) from error
