"""The lowest environment of `make test-bounds`, where other tests run, has the lower bounds of pyproject.toml."""

import os
from importlib.metadata import requires, version

import pytest
from packaging.requirements import Requirement
from packaging.version import Version

EXTRAS = os.environ.get("LOPA_LOWEST_EXTRAS", "").split()


@pytest.mark.skipif(not EXTRAS, reason="runs in the environment that `make test-bounds` creates")
def test_the_lowest_versions_are_the_lower_bounds() -> None:
    needed = [Requirement(each) for each in requires("lopa-export") or ()]
    runtime = [each for each in needed if each.marker is None]
    extra = [each for each in needed if each.marker and any(each.marker.evaluate({"extra": name}) for name in EXTRAS)]
    assert len(runtime) > 5
    assert len(extra) > len(EXTRAS)
    bounds = {each.name: [Version(part.version) for part in each.specifier] for each in (*runtime, *extra)}
    assert {name: [Version(Version(version(name)).public)] for name in bounds} == bounds
