"""Archives of kernels: those of a wheel, and those that Triton compiles for a source installation."""

import json
import os
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from lopa.runtime.cuda_kernels import kernel_archive
from lopa.runtime.cuda_kernels.kernel_archive import (
    KernelArchive,
    archive_of_file,
    kernels_for_target,
    kernels_status,
    needs_compilation,
)

ENTRY = {"file": "a", "entry": "e", "threads": 128, "shared": 0, "parameters": [8] * 9, "constants": {"BLOCK": 1024}}


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return the folder of a wheel's archives, which is empty."""
    kernels_for_target.cache_clear()
    monkeypatch.setattr(kernel_archive, "_FOLDER", tmp_path)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path


def write_archive(path: Path, variant: str = "swiglu.bf16", **changes: Any) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with zipfile.ZipFile(path, "w") as archive:
        index = {
            "format": 1,
            "target": path.stem,
            "cuda": 12000,
            "driver": "525",
            "kernels": {variant: ENTRY | changes},
        }
        archive.writestr("index.json", json.dumps(index))
        archive.writestr("a", b"image")


@pytest.mark.parametrize(
    ("architecture", "name"), [("sm90", "sm_90"), ("sm121", "sm_121"), ("sm87", "compute_80"), ("sm110", "compute_80")]
)
def test_a_gpu_has_its_archive_or_ptx(folder: Path, architecture: str, name: str) -> None:
    for target in ("sm_90", "sm_121", "compute_80"):
        write_archive(folder / f"{target}.zip")
    found = kernels_for_target(architecture)
    assert isinstance(found, KernelArchive)
    assert (found.name, found.kernels["swiglu.bf16"].image) == (name, b"image\0")
    assert kernels_status() == "compiled for compute_80, sm_121, sm_90"


@pytest.mark.parametrize(
    "damage", [lambda data: data[:-30], lambda data: data.replace(b"image", b"imagf", 1), lambda _: b""]
)
def test_damaged_archives(folder: Path, damage: Callable[[bytes], bytes]) -> None:
    """The plain graph runs, and the reason names the file."""
    path = folder / "sm_90.zip"
    write_archive(path)
    path.write_bytes(damage(path.read_bytes()))
    assert str(kernels_for_target("sm90")).startswith(f"{path} cannot be read (")


@pytest.mark.parametrize("constants", [{"ROWS": 8, "WORDS": 32}, {"ROWS": 16, "WORDS": 32}, {}])
def test_kernels_that_other_grids_need_are_refused(constants: dict[str, Any], folder: Path) -> None:
    """Rows would be left out silently."""
    write_archive(folder / "sm_90.zip", "commit.8", constants=constants, parameters=[8] * 11)
    if constants.get("ROWS") == 8:
        assert archive_of_file(folder / "sm_90.zip").kernels["commit.8"].arguments == 9
        return
    with pytest.raises(ValueError, match="expected ROWS 8"):
        archive_of_file(folder / "sm_90.zip")


def test_a_source_installation_without_triton(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kernel_archive, "find_spec", lambda _: None)
    assert str(kernels_for_target("sm90")).startswith(
        'this installation has no kernels for compute capability 9: install Triton ("triton>=3.7"), '
    )
    assert not needs_compilation("sm90")
    assert kernels_status().startswith("none, so ONNX Runtime's kernels are used")


def test_kernels_that_cannot_be_kept_or_compiled(
    folder: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    pytest.importorskip("triton", reason="needs Triton")
    (folder / "cache").write_text("a file")
    assert str(kernels_for_target("sm80")).startswith("Triton's kernels cannot be made in the folder that XDG_CACHE_")
    (folder / "cache").unlink()
    monkeypatch.setattr(kernel_archive, "_COMPILER", "lopa.none_such")
    assert needs_compilation("sm89")
    caplog.clear()
    for _ in range(2):  # the second call compiles nothing
        reason = str(kernels_for_target("sm89"))
    assert reason.startswith("Triton cannot compile the kernels for sm_89 (exit code 1): ")
    assert reason.endswith("No module named lopa.none_such")
    assert [message.partition(".")[0] for message in caplog.messages] == [
        f"Triton compiles the kernels for sm_89 once, into {folder}/cache/lopa-export/cuda_kernels",
        reason.partition(".")[0],
    ]
    monkeypatch.setattr(kernel_archive, "_MAX_SECONDS", 0.01)
    assert "timed out" in str(kernels_for_target("sm86"))
    assert not list((folder / "cache").rglob("*.zip"))


@pytest.mark.slow
def test_compiled_kernels_are_kept(folder: Path) -> None:
    """The real compiler runs once for a target. The oldest archives are removed."""
    pytest.importorskip("triton", reason="needs Triton")
    kept = folder / "cache" / "lopa-export" / "cuda_kernels"
    for number in range(5):
        write_archive(kept / f"old{number}.zip")
        os.utime(kept / f"old{number}.zip", (number, number))
    first = kernels_for_target("sm90")
    assert isinstance(first, KernelArchive)
    assert len(first.kernels) == 153
    (path,) = kept.glob("*sm_90.zip")
    made = path.stat().st_mtime_ns
    kernels_for_target.cache_clear()
    assert kernels_for_target("sm90") == first
    assert path.stat().st_mtime_ns == made
    assert sorted(each.name for each in kept.iterdir()) == [path.name, "old2.zip", "old3.zip", "old4.zip"]
