"""Files that a description (manifest.json, engine.json) names in its folder. Knows no other fields of it."""

from pathlib import Path, PurePosixPath

from lopa.runtime.errors import BadInputError
from lopa.runtime.files.untrusted_input import refused_as_bad_input


def path_of_listed_file(folder: Path, name: str, *, whole: str, remedy: str) -> Path:
    """Path of the file `name` (relative, forward slashes) in `folder`, a `whole` such as "bundle".

    Raises BadInputError for a name that leaves the folder, be it through a link, and for one that is no path.
    """
    expected = f"a relative path inside the {whole}"
    received = f"the {whole} {folder} names the file {name!r:.300}"
    with refused_as_bad_input(received, expected=expected, remedy=remedy):
        parts = PurePosixPath(name)
        path = folder.joinpath(*parts.parts)
        if parts.is_absolute() or ".." in parts.parts or not path.resolve().is_relative_to(folder.resolve()):
            raise BadInputError(received, expected=expected, remedy=f"do not use this {whole}; {remedy}")
    return path


def check_listed_file(folder: Path, name: str, size: int, *, whole: str, remedy: str) -> None:
    """Raise BadInputError unless `name` is a regular file of `size` bytes in `folder`, errors as above."""
    path = path_of_listed_file(folder, name, whole=whole, remedy=remedy)
    expected = f"a file of {size} bytes, as the description of the {whole} says"
    with refused_as_bad_input(f"{path!s:.300}", expected=expected, remedy=remedy):
        found = path.stat().st_size if path.is_file() else None
    if found != size:
        raise BadInputError(
            f"{path} " + ("is missing" if found is None else f"has {found} bytes"), expected=expected, remedy=remedy
        )
