"""What the tests of ascend:N share: a bundle with an engine, and the stand-in acl where the real one would be."""

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
    """A portable bundle with an engine of four buckets. Shared: a test that alters it copies it first."""
    return bundle_with_engine(tiny_portable, tmp_path_factory.mktemp("ascend") / "bundle", BUCKETS)


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> Iterator[StandInAcl]:
    """The stand-in in pyACL's place. What a test opened must be closed at its end, and no rule broken."""
    found = StandInAcl()
    monkeypatch.setitem(sys.modules, "acl", found)
    yield found
    THE_PROCESS.finalize()
    assert found.violations == []
    assert found.trace == [] or found.trace[-1] == "finalize()"
