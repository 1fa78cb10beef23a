"""What the tests of the Ascend build share: a bundle with a plan, and the stand-in atc where the real one would be."""

import os
import shutil
from pathlib import Path

import pytest
from tests.ascend.stand_in_toolkit import stand_in_toolkit
from tests.runtime.test_gears import plan_of

from lopa.runtime.bundle import Bundle
from lopa.runtime.gears import GEARS_NAME, json_from_plan


@pytest.fixture
def planned_bundle(tiny_portable: Path, tmp_path: Path) -> Path:
    """A portable bundle of the test's own, with a plan of three gears."""
    path = Path(shutil.copytree(tiny_portable, tmp_path / "bundle"))
    (path / GEARS_NAME).write_bytes(json_from_plan(plan_of(Bundle.open(path))))
    return path


@pytest.fixture
def atc_calls(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Puts the stand-in atc on PATH; the file to which it adds its calls."""
    calls = tmp_path / "calls.jsonl"
    monkeypatch.setenv("PATH", str(stand_in_toolkit(tmp_path / "toolkit")), prepend=os.pathsep)
    monkeypatch.setenv("STAND_IN_ATC_CALLS", str(calls))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    for name in ("ASCEND_PROCESS_LOG_PATH", "ASCEND_TOOLKIT_HOME", "ASCEND_HOME_PATH"):
        monkeypatch.delenv(name, raising=False)
    return calls
