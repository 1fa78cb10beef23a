"""A bundle of the Hub as a folder of its own, whose files are hard links into the Hub's cache.

The cache has symbolic links, which a bundle may not contain. The folder lies inside the repository's folder of the
cache, so that `hf cache rm` removes it too. Compiled engines are not downloaded: they are code.
"""

import os
import shutil
import tempfile
from functools import lru_cache
from pathlib import Path

from lopa.runtime.checked_values import shown
from lopa.runtime.errors import BadInputError, errors_as_bad_input, raise_if_from_handler
from lopa.runtime.hub.hub_id import HubId, hub_id_from_uri
from lopa.runtime.hub.snapshot import Snapshot, download_snapshot

NOT_DOWNLOADED = ("engines/*", ".git*", "*.md", "*.py", "*.bin", "*.pt", "*.pkl")
"""Patterns of files in a bundle's repository that are not downloaded."""


def folder_of_bundle(path: Path | str) -> Path:
    """Return the folder of the bundle hf://ORG/NAME@REVISION, downloaded if necessary, or `path`, absolute and without
    links.

    A link may be changed at any time: resolve a path once, and open every file by the result. Within a process a branch
    or tag always means the same commit. Raises the errors of download_snapshot, and BadInputError for an invalid path.
    """
    expected = "a bundle folder made by lopa-export onnx"
    with errors_as_bad_input(f"the path {shown(str(path))}", expected=expected, remedy="check the path"):
        hub_id = hub_id_from_uri(path) if str(path).startswith("hf:") else None
        return (Path(path) if hub_id is None else _downloaded_folder(hub_id)).resolve()


def check_own_bundle(path: Path) -> None:
    """Raise BadInputError for a bundle of the Hub, since its folder in the cache must not change."""
    hub_id = hub_id_from_uri(path)
    if hub_id is not None:
        raise BadInputError(
            f"cannot write into {hub_id}, a bundle in the Hub's cache",
            expected="a bundle folder of your own",
            remedy=f"copy it first: hf download {hub_id.repository} --local-dir BUNDLE",
        )


@lru_cache(maxsize=64)
def _downloaded_folder(hub_id: HubId) -> Path:
    return _linked_folder(download_snapshot(hub_id, ("*",), NOT_DOWNLOADED))


def _linked_folder(snapshot: Snapshot) -> Path:
    """Return a folder with hard links to the files of `snapshot`, or copies on other file systems."""
    target = snapshot.path.parent.parent / "lopa" / snapshot.commit
    names = [each.relative_to(snapshot.path) for each in sorted(snapshot.path.rglob("*")) if each.is_file()]

    def is_complete() -> bool:
        return target.is_dir() and all((target / name).is_file() for name in names)

    if is_complete():
        return target
    try:
        target.parent.mkdir(exist_ok=True)
        with tempfile.TemporaryDirectory(dir=target.parent) as made:
            folder = Path(made, snapshot.commit)
            for name in names:
                place, file = folder / name, (snapshot.path / name).resolve()
                place.parent.mkdir(parents=True, exist_ok=True)
                try:
                    os.link(file, place)
                except OSError:
                    shutil.copyfile(file, place)
            if not is_complete():
                shutil.rmtree(target, ignore_errors=True)
                folder.rename(target)
    except OSError as error:
        raise_if_from_handler(error)
        if is_complete():  # by another process meanwhile
            return target
        raise BadInputError(
            f"{target}: {error}", expected="a writable cache with enough space", remedy="check HF_HOME and the disk"
        ) from error
    return target
