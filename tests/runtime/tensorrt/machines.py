"""Engines for tests of tensorrt:N, built by the stand-in like lopa-export tensorrt."""

from collections.abc import Sequence
from pathlib import Path
from types import ModuleType

import msgspec
from tests.buckets import bucket
from tests.runtime.tensorrt.buckets import DEVICE, target

from lopa.export.progress import silent
from lopa.export.tensorrt.engine import engine_from_job, job_from_bundle
from lopa.export.tensorrt.rtx import target_of_rtx
from lopa.runtime.bundle import Bundle
from lopa.runtime.bundle.buckets import ShapeBucket
from lopa.runtime.bundle.engine_file import ENGINE_NAME
from lopa.runtime.bundle.record import json_from_record
from lopa.runtime.tensorrt.tensorrt_manifest import TENSORRT_ENGINES, BuildFlags, StoredTensorRTEngine

BUCKETS = [bucket(1, 1, 48, 64), bucket(1, 3, 64, 128), bucket(1, 5, 48, 64), bucket(2, 5, 96, 192)]
"""Small shape buckets, as the first prompts of the recorded traces need them."""
GATE_BUCKETS = [bucket(1, 5, 96, 128), bucket(1, 2, 40, 256), bucket(2, 3, 160, 256)]
"""Shape buckets that hold the decodes of lopa-export verify."""


def built(
    path: Path, trt: ModuleType, buckets: Sequence[ShapeBucket] = BUCKETS, flags: BuildFlags | None = None
) -> StoredTensorRTEngine:
    """Build an unverified engine of the bundle at `path`."""
    job = job_from_bundle(Bundle.open(path), buckets, flags or BuildFlags())
    return engine_from_job(job, trt, target(trt), None, silent).found


def built_for_rtx(
    path: Path,
    rtx: ModuleType,
    buckets: Sequence[ShapeBucket] = BUCKETS,
    flags: BuildFlags | None = None,
    capabilities: Sequence[str] = (),
) -> StoredTensorRTEngine:
    """Build an unverified engine of the bundle at `path` with TensorRT for RTX."""
    flags = flags or BuildFlags()
    job = job_from_bundle(Bundle.open(path), buckets, flags)
    return engine_from_job(job, rtx, target_of_rtx(rtx, capabilities, flags), None, silent).found


def with_verified(found: StoredTensorRTEngine) -> StoredTensorRTEngine:
    """Mark an engine as verified in its description."""
    changed = msgspec.structs.replace(found.engine, verified_on=[DEVICE.name])
    (found.folder / ENGINE_NAME).write_bytes(json_from_record(changed))
    return TENSORRT_ENGINES.read(found.folder)
