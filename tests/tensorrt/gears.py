"""Plans and devices for tests of TensorRT engines."""

from pathlib import Path

from tests.tensorrt.stand_in_tensorrt import GPU

from lopa.runtime.bundle import Bundle
from lopa.runtime.costs import weights_digest
from lopa.runtime.cuda_driver import CudaDevice
from lopa.runtime.gears import Expected, Gear, GearPlan, PlanCosts, Source, json_from_plan

DEVICE = CudaDevice(0, GPU, "9.0", 80 << 30)
WANTED = 257
"""256 generated positions and a kept row."""


def gear(requests: int, branches: int, window: int, prefix: int, seconds: float) -> Gear:
    return Gear(
        requests=requests,
        branches=branches,
        window=window,
        prefix=prefix,
        wanted=min(window, WANTED),
        seconds=seconds,
    )


GEARS = [gear(1, 4, 32, 128, 1.0), gear(1, 4, 96, 384, 2.0), gear(2, 4, 288, 576, 9.0), gear(1, 4, 640, 896, 12.0)]


def plan_file(bundle: Bundle, path: Path, gears: list[Gear] = GEARS) -> Path:
    plan = GearPlan(
        schema=1,
        contract=1,
        weights_sha256=weights_digest(bundle),
        made="2026-11-21",
        sources=[Source(name="t.jsonl", sha256="00", forwards=10)],
        costs=PlanCosts(kind="modelled", device="tensorrt:0", machine="test", measured=None),
        every_size=True,
        gear_bytes=1000,
        expected=Expected(seconds=1.1, no_padding_seconds=1.0, least_seconds=1.1, padding=0.2),
        gears=gears,
    )
    path.write_bytes(json_from_plan(plan))
    return path
