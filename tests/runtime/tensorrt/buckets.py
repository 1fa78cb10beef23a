"""Plans and devices for tests of TensorRT engines."""

from functools import partial
from pathlib import Path
from types import ModuleType

from tests.buckets import bucket as any_bucket
from tests.buckets import params_of
from tests.runtime.tensorrt.stand_in_tensorrt import GPU

from lopa.runtime.bundle import Bundle
from lopa.runtime.bundle.buckets import ShapeBucket
from lopa.runtime.bundle.record import json_from_record
from lopa.runtime.cuda.driver import CudaDevice
from lopa.runtime.tensorrt.tensorrt_manifest import EngineTarget, target_of_device

DEVICE = CudaDevice(0, GPU, "9.0", 80 << 30, 13000)
WANTED = 257
"""Sampled positions: 256 generated positions and a kept row."""


def target(trt: ModuleType, device: CudaDevice = DEVICE) -> EngineTarget:
    """Return the target that `trt` builds for on a machine with `device`."""
    return target_of_device(device, trt.__version__)


bucket = partial(any_bucket, wanted=WANTED)
BUCKETS = [
    bucket(1, 4, 32, 128, 1.0),
    bucket(1, 4, 96, 384, 2.0),
    bucket(2, 4, 288, 576, 9.0),
    bucket(1, 4, 640, 896, 12.0),
]


def plan_file(bundle: Bundle, path: Path, buckets: list[ShapeBucket] = BUCKETS) -> Path:
    plan = params_of(bundle, buckets=buckets)
    path.write_bytes(json_from_record(plan))
    return path
