"""Gears and plans for tests."""

import msgspec

from lopa.runtime.bundle import Bundle
from lopa.runtime.bundle.gears import Expected, Gear, GearPlan, GearPlanCosts, Source


def gear(
    requests: int, branches: int, window: int, prefix: int, seconds: float | None = None, *, wanted: int = 96
) -> Gear:
    """Return a gear with at most `wanted` sampled positions. Its seconds default to its number of rows."""
    rows = float(requests * branches * window)
    return Gear(
        requests=requests,
        branches=branches,
        window=window,
        prefix=prefix,
        wanted=min(window, wanted),
        seconds=rows if seconds is None else seconds,
    )


GEARS = [gear(1, 1, 80, 64), gear(1, 3, 64, 128), gear(1, 5, 48, 64), gear(2, 5, 96, 192)]
"""Enough for the recorded traces with five branches. Some forwards are split."""


def plan_of(bundle: Bundle, **changes: object) -> GearPlan:
    """Return a plan of GEARS for `bundle`, with `changes` applied to its fields."""
    plan = GearPlan(
        schema=1,
        contract=1,
        weights_sha256=bundle.manifest.weights_digest,
        made="2026-11-21",
        sources=[Source(name="t.jsonl", sha256="00", forwards=10)],
        costs=GearPlanCosts(kind="modelled", device="cpu", machine="test", measured=None),
        every_size=True,
        gear_bytes=1000,
        expected=Expected(seconds=1.1, no_padding_seconds=1.0, least_seconds=1.1, padding=0.2),
        gears=GEARS,
    )
    return msgspec.structs.replace(plan, **changes)
