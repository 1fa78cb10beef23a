"""Files that a description (manifest.json, engine.json) lists in its folder."""

from pathlib import Path, PurePosixPath

from lopa.runtime.errors import BadInputError, errors_as_bad_input
from lopa.runtime.files.stamp import Stamp, stamp_from_status


def listed_file_path(folder: Path, name: str, *, whole: str, remedy: str) -> Path:
    """Return the path of file `name` (relative, forward slashes) in `folder`. `whole` names the folder in errors, e.g.
    "bundle".

    Raises BadInputError for a name that leaves the folder, also through a link, and for an invalid path.
    """
    expected = f"a relative path inside the {whole}"
    received = f"the {whole} {folder} names the file {name!r:.300}"
    with errors_as_bad_input(received, expected=expected, remedy=remedy):
        parts = PurePosixPath(name)
        path = folder.joinpath(*parts.parts)
        inside = any(path.resolve().is_relative_to(each) for each in _folders_of_files(folder.resolve()))
        if parts.is_absolute() or ".." in parts.parts or not inside:
            raise BadInputError(received, expected=expected, remedy=f"do not use this {whole}; {remedy}")
    return path


def _folders_of_files(folder: Path) -> tuple[Path, ...]:
    """Return the folders that may contain the targets of links in `folder`: itself, and in the Hub's cache the blobs.

    A snapshot at CACHE/models--ORG--NAME/snapshots/COMMIT has links to the blobs of its repository, which may in turn
    be links to those that all repositories share.
    """
    if folder.parent.name != "snapshots" or not folder.parents[1].name.startswith("models--"):
        return (folder,)
    return (folder, folder.parents[1] / "blobs", folder.parents[2] / "blobs")


def check_listed_file(folder: Path, name: str, size: int, *, whole: str, remedy: str) -> Stamp:
    """Return the stamp of `name`. Raise BadInputError unless it is a regular file of `size` bytes inside `folder`."""
    path = listed_file_path(folder, name, whole=whole, remedy=remedy)
    expected = f"a file of {size} bytes, as listed by the {whole}"
    with errors_as_bad_input(f"{path!s:.300}", expected=expected, remedy=remedy):
        found = path.stat() if path.is_file() else None
    if found is None or found.st_size != size:
        raise BadInputError(
            f"{path} " + ("is missing" if found is None else f"has {found.st_size} bytes"),
            expected=expected,
            remedy=remedy,
        )
    return stamp_from_status(found)
