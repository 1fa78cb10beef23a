"""What the tests for Ascend share: bundles with a plan or an engine, and stand-ins where the real ones would be."""

import os
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.ascend.engines import GEARS, bundle_with_engine
from tests.ascend.stand_in_acl import StandInAcl
from tests.ascend.stand_in_toolkit import stand_in_toolkit
from tests.runtime.test_gears import plan_of

from lopa.runtime.acl_process import THE_PROCESS
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


@pytest.fixture(scope="session")
def ascend_bundle(tiny_portable: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A portable bundle with an engine of four gears. Shared: a test that alters it copies it first."""
    return bundle_with_engine(tiny_portable, tmp_path_factory.mktemp("ascend") / "bundle", GEARS)


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> Iterator[StandInAcl]:
    """The stand-in in pyACL's place. What a test opened must be closed at its end, and no rule broken."""
    found = StandInAcl()
    monkeypatch.setitem(sys.modules, "acl", found)
    yield found
    THE_PROCESS.finalize()
    assert found.violations == []
    assert found.trace == [] or found.trace[-1] == "finalize()"
