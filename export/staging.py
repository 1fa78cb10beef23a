"""A folder that appears whole or not at all: written beside its destination and renamed at the end.

Knows folders and processes of this machine only; two machines must not export to one destination on a shared disk.
"""

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from lopa.runtime.errors import BadInputError
from lopa.runtime.manifest import MANIFEST_NAME


def check_destination(destination: Path, *, overwrite: bool) -> None:
    """Raise BadInputError if `destination` exists, unless it is a bundle and may be overwritten."""
    if not destination.exists():
        return
    if not overwrite:
        raise BadInputError(
            f"{destination} exists", expected="a destination that does not", remedy="choose another, or --overwrite"
        )
    if not (destination / MANIFEST_NAME).is_file():
        raise BadInputError(
            f"{destination} is not a bundle",
            expected="a bundle to overwrite, or a destination that does not exist",
            remedy="choose another destination; only bundles are overwritten",
        )


@contextmanager
def staged_folder(destination: Path, *, overwrite: bool) -> Iterator[Path]:
    """A new empty folder that becomes `destination` when the block ends well, and is removed when it does not.

    What exports whose process is gone have left beside the destination is cleared first. Raises BadInputError as
    check_destination does, and for an OSError inside (a full disk, no permission).
    """
    destination = destination.resolve()
    missing_parents = [parent for parent in destination.parents if not parent.exists()]
    folder = destination.with_name(f".{destination.name}.partial-{os.getpid()}")
    try:
        destination.parent.mkdir(parents=True, exist_ok=True)
        _clear_leftovers(destination)
        check_destination(destination, overwrite=overwrite)
        folder.mkdir()
        yield folder
        _sync(folder)
        _put_in_place(folder, destination, overwrite=overwrite)
    except BaseException as error:
        shutil.rmtree(folder, ignore_errors=True)
        for parent in missing_parents:
            with suppress(OSError):
                parent.rmdir()
        if isinstance(error, OSError):
            raise BadInputError(
                f"{destination} cannot be written: {error.strerror or error}",
                expected="a place that can be written, with room for the bundle",
                remedy="free some space or choose another place, then export again; nothing was left behind",
            ) from error
        raise


def _put_in_place(folder: Path, destination: Path, *, overwrite: bool) -> None:
    replaced = destination.with_name(f".{destination.name}.replaced-{os.getpid()}")
    check_destination(destination, overwrite=overwrite)
    if destination.exists():
        destination.rename(replaced)
    folder.rename(destination)
    _sync_entry(destination.parent)
    shutil.rmtree(replaced, ignore_errors=True)


def _clear_leftovers(destination: Path) -> None:
    """Remove what ended processes left; bring back a bundle whose replacement was never put in place."""
    for leftover in destination.parent.glob(f".{destination.name}.*-*"):
        kind, _, process = leftover.name.removeprefix(f".{destination.name}.").rpartition("-")
        if kind not in ("partial", "replaced") or not process.isdecimal() or _is_running(int(process)):
            continue
        if kind == "replaced" and not destination.exists():
            leftover.rename(destination)
        else:
            shutil.rmtree(leftover)


def _is_running(process: int) -> bool:
    """Whether another process has this number. Our own number on a leftover was an earlier process's."""
    if process == os.getpid():
        return False
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True


def _sync(folder: Path) -> None:
    for path in folder.iterdir():
        _sync_entry(path)
    _sync_entry(folder)


def _sync_entry(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
