import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from lopa.export.staging import check_destination, staged_folder
from lopa.runtime.errors import BadInputError


def _names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def _bundle(path: Path, text: str) -> Path:
    path.mkdir()
    (path / "manifest.json").write_text(text)
    return path


def _stage(destination: Path, text: str, *, overwrite: bool = False, error: BaseException | None = None) -> None:
    """Stage a bundle; with `error`, fail after its file is written."""
    with staged_folder(destination, overwrite=overwrite) as folder:
        (folder / "manifest.json").write_text(text)
        if error is not None:
            raise error


def _ended_process() -> int:
    ended = subprocess.Popen([sys.executable, "-c", ""])
    ended.wait()
    return ended.pid


def test_the_folder_appears_when_the_block_ends(tmp_path: Path) -> None:
    destination = tmp_path / "new" / "deep" / "bundle"
    with staged_folder(destination, overwrite=False) as folder:
        (folder / "file").write_text("whole")
        assert not destination.exists()
    assert _names(destination.parent) == ["bundle"]
    assert (destination / "file").read_text() == "whole"


@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt, SystemExit])
def test_a_failed_block_leaves_nothing(tmp_path: Path, error: type[BaseException]) -> None:
    with pytest.raises(error):
        _stage(tmp_path / "new" / "deep" / "bundle", "half", error=error("half"))
    assert _names(tmp_path) == []


def test_an_operating_system_s_error_is_bad_input(tmp_path: Path) -> None:
    with pytest.raises(BadInputError, match="No space left on device"):
        _stage(tmp_path / "bundle", "half", error=OSError(28, "No space left on device"))
    assert _names(tmp_path) == []


def test_a_place_under_a_file(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with (
        pytest.raises(BadInputError, match="cannot be written"),
        staged_folder(tmp_path / "file" / "b", overwrite=False),
    ):
        pass
    assert _names(tmp_path) == ["file"]


def test_an_existing_destination(tmp_path: Path) -> None:
    destination = _bundle(tmp_path / "bundle", "old")
    with pytest.raises(BadInputError, match="exists"), staged_folder(destination, overwrite=False):
        pytest.fail("the block must not run")
    assert (destination / "manifest.json").read_text() == "old"


@pytest.mark.parametrize("kind", ["file", "folder"])
def test_only_bundles_are_overwritten(tmp_path: Path, kind: str) -> None:
    destination = tmp_path / "precious"
    if kind == "file":
        destination.write_text("keep")
    else:
        destination.mkdir()
        (destination / "thesis.tex").write_text("keep")
    with pytest.raises(BadInputError, match="is not a bundle"):
        check_destination(destination, overwrite=True)
    with pytest.raises(BadInputError, match="is not a bundle"), staged_folder(destination, overwrite=True):
        pytest.fail("the block must not run")
    assert _names(tmp_path) == ["precious"]


def test_overwriting_keeps_the_old_bundle_until_the_end(tmp_path: Path) -> None:
    destination = _bundle(tmp_path / "bundle", "old")
    (destination / "engines").mkdir()
    with pytest.raises(ValueError, match="half"):
        _stage(destination, "new", overwrite=True, error=ValueError("half"))
    assert (destination / "manifest.json").read_text() == "old"
    with staged_folder(destination, overwrite=True) as folder:
        (folder / "manifest.json").write_text("new")
        assert (destination / "manifest.json").read_text() == "old"
    assert _names(tmp_path) == ["bundle"]
    assert _names(destination) == ["manifest.json"]
    assert (destination / "manifest.json").read_text() == "new"


def test_a_failed_rename_puts_the_old_bundle_back(tmp_path: Path) -> None:
    destination = _bundle(tmp_path / "bundle", "old")
    with (
        pytest.raises(BadInputError, match="cannot be written"),
        staged_folder(destination, overwrite=True, needed_bytes=0) as folder,
    ):
        folder.rmdir()
    assert _names(tmp_path) == ["bundle"]
    assert (destination / "manifest.json").read_text() == "old"


def test_a_destination_that_appears_meanwhile_is_not_lost(tmp_path: Path) -> None:
    destination = tmp_path / "bundle"
    staging = staged_folder(destination, overwrite=False)
    (staging.__enter__() / "manifest.json").write_text("mine")
    _bundle(destination, "theirs")
    with pytest.raises(BadInputError, match="exists"):
        staging.__exit__(None, None, None)
    assert _names(tmp_path) == ["bundle"]
    assert (destination / "manifest.json").read_text() == "theirs"


@pytest.mark.parametrize("name", ["bundle", "b[1]*", "b.partial-1"])
def test_leftovers_of_ended_processes_are_removed_and_others_kept(tmp_path: Path, name: str) -> None:
    ended = _ended_process()
    gone = [f".{name}.partial-{ended}", f".{name}.partial-{os.getpid()}"]
    kept = [
        f".{name}.partial-{os.getppid()}",
        f".other.partial-{ended}",
        f".{name}.notes-{ended}",
        f".{name}.partial-x",
    ]
    for leftover in (*gone, *kept):
        (tmp_path / leftover).mkdir()
        (tmp_path / leftover / "model.onnx.data").write_text("half")
    with staged_folder(tmp_path / name, overwrite=False):
        pass
    assert _names(tmp_path) == sorted([*kept, name])


def test_a_bundle_moved_aside_by_a_killed_export_is_restored(tmp_path: Path) -> None:
    aside = _bundle(tmp_path / f".bundle.replaced-{_ended_process()}", "old")
    with pytest.raises(BadInputError, match="exists"), staged_folder(tmp_path / "bundle", overwrite=False):
        pytest.fail("the block must not run")
    assert _names(tmp_path) == ["bundle"]
    assert (tmp_path / "bundle" / "manifest.json").read_text() == "old"
    _bundle(aside, "older")
    with staged_folder(tmp_path / "bundle", overwrite=True) as folder:
        (folder / "manifest.json").write_text("new")
    assert _names(tmp_path) == ["bundle"]
    assert (tmp_path / "bundle" / "manifest.json").read_text() == "new"


def test_free_space_on_the_disk(tmp_path: Path) -> None:
    free = shutil.disk_usage(tmp_path).free
    with staged_folder(tmp_path / "small", overwrite=False, needed_bytes=1000):
        pass
    with (
        pytest.raises(BadInputError, match=r"has \d+ bytes free") as raised,
        staged_folder(tmp_path / "new" / "large", overwrite=False, needed_bytes=2 * free),
    ):
        pytest.fail("the block must not run")
    assert f"{2 * free} bytes" in raised.value.expected
    assert _names(tmp_path) == ["small"]
