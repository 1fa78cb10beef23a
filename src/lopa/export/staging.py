"""A folder that appears whole or not at all: written beside its destination and renamed at the end.

Knows folders and processes of this machine only; two machines must not export to one destination on a shared disk.
"""

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from lopa.runtime.bundle.manifest import MANIFEST_NAME
from lopa.runtime.errors import BadInputError
from lopa.runtime.files.untrusted_input import refused_as_bad_input


@dataclass(frozen=True)
class Product:
    """What a folder is made to be, and the file in it that tells."""

    noun: str
    marker: str


BUNDLE = Product("bundle", MANIFEST_NAME)


def check_destination(destination: Path, *, overwrite: bool, product: Product = BUNDLE) -> None:
    """Raise BadInputError if `destination` exists, unless it is such a product and may be overwritten.

    Also for a path that the operating system takes for none.
    """
    with refused_as_bad_input(str(destination), expected="a path that can be made", remedy="choose another"):
        exists = destination.resolve().exists()
    if not exists:
        return
    if not overwrite:
        raise BadInputError(
            f"{destination} exists", expected="a destination that does not", remedy="choose another, or --overwrite"
        )
    if not (destination / product.marker).is_file():
        raise BadInputError(
            f"{destination} is not a {product.noun}",
            expected=f"a {product.noun} to overwrite, or a destination that does not exist",
            remedy=f"choose another destination; only a {product.noun} is overwritten",
        )


@contextmanager
def staged_folder(destination: Path, *, overwrite: bool, room: int = 0, product: Product = BUNDLE) -> Iterator[Path]:
    """A new empty folder that becomes `destination` when the block ends well, and is removed when it does not.

    What exports whose process is gone have left beside the destination is cleared first. Raises BadInputError as
    check_destination does, when the disk has less than `room` bytes free, and for an OSError inside (a full disk, no
    permission).
    """
    check_destination(destination, overwrite=overwrite, product=product)
    destination = destination.resolve()
    with _errors_of_writing(destination, product), _parents_of(destination):
        _clear_leftovers(destination)
        check_destination(destination, overwrite=overwrite, product=product)
        _check_room(destination, room, product)
        folder = destination.with_name(f".{destination.name}.partial-{os.getpid()}")
        folder.mkdir()
        try:
            yield folder
            _sync(folder)
            _put_in_place(folder, destination, overwrite=overwrite, product=product)
        except BaseException:
            shutil.rmtree(folder, ignore_errors=True)
            raise


def _check_room(destination: Path, needed: int, product: Product) -> None:
    free = shutil.disk_usage(destination.parent).free
    if free < needed:
        raise BadInputError(
            f"{destination.parent} has {free} bytes free ({free / 1e9:.1f} GB)",
            expected=f"{needed} bytes ({needed / 1e9:.1f} GB) for the {product.noun}, beside one that is overwritten",
            remedy="free some space or choose another place",
        )


@contextmanager
def _errors_of_writing(destination: Path, product: Product) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise BadInputError(
            f"{destination} cannot be written: {error.strerror or error}",
            expected=f"a place that can be written, with room for the {product.noun}",
            remedy="free some space or choose another place, then try again; nothing was left behind",
        ) from error


@contextmanager
def _parents_of(destination: Path) -> Iterator[None]:
    """Makes the folders above `destination`, and removes those that it made when the block fails."""
    missing = [parent for parent in destination.parents if not parent.exists()]
    try:
        destination.parent.mkdir(parents=True, exist_ok=True)
        yield
    except BaseException:
        for parent in missing:
            with suppress(OSError):
                parent.rmdir()
        raise


def _put_in_place(folder: Path, destination: Path, *, overwrite: bool, product: Product) -> None:
    replaced = destination.with_name(f".{destination.name}.replaced-{os.getpid()}")
    check_destination(destination, overwrite=overwrite, product=product)
    if destination.exists():
        destination.rename(replaced)
    try:
        folder.rename(destination)
    except OSError:
        if replaced.exists():
            replaced.rename(destination)
        raise
    with suppress(OSError):  # not every file system can sync a folder, and the bundle is in place
        _sync_entry(destination.parent)
    shutil.rmtree(replaced, ignore_errors=True)


def _clear_leftovers(destination: Path) -> None:
    """Remove what ended processes left; bring back a bundle whose replacement was never put in place."""
    prefix = f".{destination.name}."
    for leftover in [path for path in destination.parent.iterdir() if path.name.startswith(prefix)]:
        kind, _, process = leftover.name.removeprefix(prefix).rpartition("-")
        if kind not in ("partial", "replaced") or not process.isdecimal() or _is_running(int(process)):
            continue
        if kind == "replaced" and not destination.exists():
            leftover.rename(destination)
        else:
            shutil.rmtree(leftover, ignore_errors=True)


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
    for path in folder.rglob("*"):
        _sync_entry(path)


def _sync_entry(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
