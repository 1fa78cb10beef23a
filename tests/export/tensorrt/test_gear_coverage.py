"""Gears that a decode with the bundle's own defaults outgrows are refused."""

from pathlib import Path

import msgspec
import pytest
from tests.runtime.tensorrt.gears import GEARS, gear

from lopa.export.tensorrt.gear_coverage import check_gears_cover_defaults, least_limits
from lopa.runtime.bundle import Bundle
from lopa.runtime.bundle.gears import Gear
from lopa.runtime.errors import BadInputError


def _gear(window: int, prefix: int, wanted: int) -> Gear:
    return msgspec.structs.replace(gear(1, 1, window, prefix, 1.0), wanted=wanted)


def test_the_limits_are_those_of_the_defaults(tiny_bundle: Path) -> None:
    manifest = Bundle.open(tiny_bundle).manifest
    limits = least_limits(manifest)
    assert (limits.window, limits.prefix, limits.wanted) == (256, 320, 256)
    check_gears_cover_defaults([_gear(256, 320, 256)], manifest, "gears.json")
    check_gears_cover_defaults(GEARS, manifest, "gears.json")


@pytest.mark.parametrize(
    "short", [_gear(255, 320, 255), _gear(256, 256, 256), _gear(256, 320, 255)], ids=["window", "prefix", "wanted"]
)
def test_a_plan_that_is_too_small_is_refused(tiny_bundle: Path, short: Gear) -> None:
    with pytest.raises(BadInputError, match=r"gears\.json holds windows of") as caught:
        check_gears_cover_defaults([short], Bundle.open(tiny_bundle).manifest, "gears.json")
    assert "256, 256 and 320" in caught.value.expected
