"""Fixtures for tests of ascend:N: a bundle with an engine, and the stand-in acl."""

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.buckets import BUCKETS
from tests.runtime.ascend.engines import bundle_with_engine
from tests.runtime.ascend.stand_in_acl import StandInAcl

from lopa.runtime.ascend.process import THE_PROCESS


@pytest.fixture(scope="session")
def ascend_bundle(tiny_portable: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a portable bundle with an engine of four shape buckets. It is shared, so copy it before changing it."""
    return bundle_with_engine(tiny_portable, tmp_path_factory.mktemp("ascend") / "bundle", BUCKETS)


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> Iterator[StandInAcl]:
    """Install the stand-in as pyACL. At the end, everything must be closed and no rule broken."""
    found = StandInAcl()
    monkeypatch.setitem(sys.modules, "acl", found)
    yield found
    THE_PROCESS.finalize()
    assert found.violations == []
    assert found.trace == [] or found.trace[-1] == "finalize()"
