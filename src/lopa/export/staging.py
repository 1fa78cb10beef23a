"""Output folders that appear complete or not at all: they are written next to the destination, then renamed.

Processes are identified by their number on this machine. Two machines must not export to one destination on a shared
disk.
"""

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from lopa.runtime.bundle.manifest import MANIFEST_NAME
from lopa.runtime.errors import BadInputError, errors_as_bad_input


@dataclass(frozen=True)
class Product:
    """Kind of output folder, recognized by a marker file."""

    noun: str
    marker: str


BUNDLE = Product("bundle", MANIFEST_NAME)


def check_destination(destination: Path, *, overwrite: bool, product: Product = BUNDLE) -> None:
    """Raise BadInputError if `destination` exists, unless it is a folder of this kind and `overwrite` is True.

    Also raises BadInputError for a path that the operating system rejects.
    """
    with errors_as_bad_input(str(destination), expected="a valid path", remedy="choose another"):
        exists = destination.resolve().exists()
    if not exists:
        return
    if not overwrite:
        raise BadInputError(
            f"{destination} exists", expected="a new destination", remedy="choose another, or pass --overwrite"
        )
    if not (destination / product.marker).is_file():
        raise BadInputError(
            f"{destination} is not a {product.noun}",
            expected=f"a {product.noun} to overwrite, or a new destination",
            remedy=f"choose another destination; --overwrite replaces a {product.noun} only",
        )


@contextmanager
def staged_folder(
    destination: Path, *, overwrite: bool, needed_bytes: int = 0, product: Product = BUNDLE
) -> Iterator[Path]:
    """Yield a new empty folder. Rename it to `destination` when the block succeeds, remove it otherwise.

    The context first removes leftovers of crashed exports next to the destination. Raises the errors of
    check_destination. Raises BadInputError for a disk with less than `needed_bytes` free, and for an OSError in the
    block (disk full, no permission).
    """
    check_destination(destination, overwrite=overwrite, product=product)
    destination = destination.resolve()
    with _write_errors(destination, product), _parents_created(destination):
        _clear_leftovers(destination)
        check_destination(destination, overwrite=overwrite, product=product)
        _check_free_space(destination, needed_bytes, product)
        folder = destination.with_name(f".{destination.name}.partial-{os.getpid()}")
        folder.mkdir()
        try:
            yield folder
            _sync(folder)
            _put_in_place(folder, destination, overwrite=overwrite, product=product)
        except BaseException:
            shutil.rmtree(folder, ignore_errors=True)
            raise


def _check_free_space(destination: Path, needed: int, product: Product) -> None:
    free = shutil.disk_usage(destination.parent).free
    if free < needed:
        raise BadInputError(
            f"{destination.parent} has {free} bytes free ({free / 1e9:.1f} GB)",
            expected=f"{needed} bytes ({needed / 1e9:.1f} GB) for the {product.noun}, even when it replaces one",
            remedy="free some disk space or choose another destination",
        )


@contextmanager
def _write_errors(destination: Path, product: Product) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise BadInputError(
            f"{destination} cannot be written: {error.strerror or error}",
            expected=f"a writable destination with free space for the {product.noun}",
            remedy="check the path, its permissions and free disk space, then retry; nothing was left behind",
        ) from error


@contextmanager
def _parents_created(destination: Path) -> Iterator[None]:
    """Create the missing parents of `destination`; remove them again when the block fails."""
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
    with suppress(OSError):  # some file systems cannot sync a folder, and the folder is already in place
        _sync_entry(destination.parent)
    shutil.rmtree(replaced, ignore_errors=True)


def _clear_leftovers(destination: Path) -> None:
    """Remove leftovers of crashed processes. Restore a folder whose replacement was never renamed to it."""
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
    """Return True if another process has this number. A leftover with our number is from an earlier process."""
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
