"""Real TensorRT on a real GPU: build, verify, decode. The tests are skipped with a reason if either is missing."""

import shutil
from pathlib import Path
from typing import Literal

import pytest
from tests.conformance.recorded import assert_reproduced
from tests.runtime.tensorrt.machines import BUCKETS, GATE_BUCKETS

from lopa.cli.make.verify import agreement_of_engine
from lopa.export.bundle_from_checkpoint import bundle_from_checkpoint
from lopa.export.progress import silent
from lopa.export.tensorrt.engine import engine_from_job, job_from_bundle
from lopa.export.tensorrt.rtx import target_of_rtx
from lopa.runtime.bundle import Bundle
from lopa.runtime.bundle.buckets import ShapeBucket
from lopa.runtime.cuda.cuda_calls import load_cuda
from lopa.runtime.cuda.driver import cuda_device
from lopa.runtime.devices import session_from_devices
from lopa.runtime.errors import MissingBackendError
from lopa.runtime.tensorrt.tensorrt_library import LIBRARIES, RTX, TensorRTLibrary
from lopa.runtime.tensorrt.tensorrt_manifest import BuildFlags, StoredTensorRTEngine, mark_verified, target_of_device
from lopa.tiny import ADAPTER, CHECKPOINT

pytestmark = pytest.mark.tensorrt


@pytest.fixture(scope="module", params=sorted(LIBRARIES))
def library(request: pytest.FixtureRequest) -> TensorRTLibrary:
    """Return each library that is installed on a machine with a GPU."""
    found = LIBRARIES[request.param]
    try:
        found.module()
        load_cuda()
        cuda_device(0)
    except MissingBackendError as error:
        pytest.skip(f"not available: {error.received}")
    return found


def built(
    bundle: Bundle, library: TensorRTLibrary, buckets: list[ShapeBucket], flags: BuildFlags
) -> StoredTensorRTEngine:
    trt = library.module()
    job = job_from_bundle(bundle, buckets, flags)
    target = target_of_rtx(trt, [], flags) if library is RTX else target_of_device(cuda_device(0), trt.__version__)
    return engine_from_job(job, trt, target, None, silent).found


@pytest.mark.parametrize(
    ("dtype", "against", "flags"),
    [
        ("float32", "cpu", BuildFlags()),
        ("float32", "cpu", BuildFlags(strip_weights=True)),
        ("float32", "cpu", BuildFlags(strip_weights=True, products="int8")),
        ("float32", "cpu", BuildFlags(weight_streaming=True)),
        ("float32", "cpu", BuildFlags(products="int8")),
        ("float16", "cpu", BuildFlags()),
        ("bfloat16", "numpy", BuildFlags()),
    ],
)
def test_engines_pass_verify(
    dtype: Literal["float32", "float16", "bfloat16"],
    against: str,
    flags: BuildFlags,
    library: TensorRTLibrary,
    tmp_path: Path,
) -> None:
    bundle_from_checkpoint(CHECKPOINT, tmp_path / "bundle", lora=ADAPTER, dtype=dtype)
    bundle = Bundle.open(tmp_path / "bundle")
    found = built(bundle, library, GATE_BUCKETS, flags)
    agreement = agreement_of_engine(bundle, f"{library.name}:0", found, against, silent)
    assert agreement.ok, agreement


@pytest.mark.parametrize("count", [1, 2])
def test_recorded_traces(count: int, tiny_bundle: Path, library: TensorRTLibrary, tmp_path: Path) -> None:
    for number in range(1, count):
        try:
            cuda_device(number)
        except MissingBackendError as error:
            pytest.skip(f"not available: {error.received}")
    bundle = Bundle.open(Path(shutil.copytree(tiny_bundle, tmp_path / "bundle")))
    mark_verified(built(bundle, library, BUCKETS, BuildFlags()), cuda_device(0))
    session = session_from_devices(bundle, [f"{library.name}:{number}" for number in range(count)])
    assert_reproduced("lopa_bf4_bs32_full", session, bundle.manifest, limit=8)
    session.close()
