"""The folder of links that several processes may make at once."""

import os
import shutil
from pathlib import Path
from unittest.mock import Mock

import pytest

from lopa.runtime.errors import BadInputError
from lopa.runtime.hub.hub_bundle import _linked_folder, folder_of_bundle
from lopa.runtime.hub.snapshot import Snapshot


@pytest.mark.parametrize("late", [False, True])
def test_a_folder_that_another_process_completes_is_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, late: bool
) -> None:
    snapshot = Snapshot(tmp_path / "snapshots" / "abc", "org/name", "abc")
    snapshot.path.mkdir(parents=True)
    (snapshot.path / "file").write_text("content")
    target = tmp_path / "lopa" / "abc"
    original, rename = os.link, Path.rename

    def complete() -> None:
        shutil.copytree(snapshot.path, target)
        (target / "of the other process").touch()

    def link(source: Path, place: Path) -> None:
        original(source, place)
        if not late:
            complete()

    def rename_late(path: Path, place: Path) -> Path:
        complete()
        return rename(path, place)

    monkeypatch.setattr(os, "link", link)
    monkeypatch.setattr(Path, "rename", rename_late)
    assert _linked_folder(snapshot) == target
    assert (target / "of the other process").exists()
    assert [path.name for path in (tmp_path / "lopa").iterdir()] == ["abc"]


def test_a_path_that_cannot_be_resolved_is_quoted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Path, "resolve", Mock(side_effect=RuntimeError("a loop of links")))
    with pytest.raises(BadInputError, match=r"^the path 'loop': a loop of links"):
        folder_of_bundle(Path("loop"))
