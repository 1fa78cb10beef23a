"""Tests that need a CUDA device. They are skipped with a reason elsewhere."""

from pathlib import Path

import numpy as np
import pytest
from tests.conformance.recorded import TRACES, comparisons_of_file
from tests.runtime.cuda.hardware import cuda_or_skip, devices_or_skip
from tests.runtime.cuda.test_session import BUCKETS, with_buckets
from tests.runtime.random_windows import assert_same_statistics, random_batch
from tests.runtime.sequential import sequential

from lopa.runtime.bundle import Bundle
from lopa.runtime.bundle.buckets import BUCKETS_NAME
from lopa.runtime.cuda.cuda_calls import CudaCalls
from lopa.runtime.cuda.cuda_memory import CudaMemory
from lopa.runtime.devices import session_from_devices
from lopa.runtime.sessions.session import open_session

pytestmark = pytest.mark.cuda


@pytest.fixture
def cuda() -> CudaCalls:
    return cuda_or_skip()


@pytest.fixture
def devices() -> int:
    return devices_or_skip()


def test_arrays_and_pieces(cuda: CudaCalls) -> None:
    memory, rng = CudaMemory(cuda, 0), np.random.default_rng(0)
    source = rng.integers(1, 255, (5, 4096), np.uint8)
    start, target = memory.allocate(source.nbytes), memory.allocate(5 * 8192)
    memory.upload(start, source)
    memory.fill_zero(target, 5 * 8192)
    memory.copy_pieces(target + 64, 8192, start, 4096, 4000, 5)
    found = np.empty((5, 8192), np.uint8)
    memory.download(found, target)
    memory.synchronize()
    np.testing.assert_array_equal(found[:, 64:4064], source[:, :4000])
    assert not found[:, :64].any()
    assert not found[:, 4064:].any()
    memory.close()


@pytest.mark.parametrize("planned", [False, True], ids=["no graphs", "graphs"])
def test_session_matches_the_reference(planned: bool, devices: int, tiny_bundle: Path, tmp_path: Path) -> None:
    bundle = with_buckets(tiny_bundle, tmp_path / "b") if planned else Bundle.open(tiny_bundle)
    session, reference = open_session(bundle, "cuda:0"), open_session(bundle, "numpy")
    rng = np.random.default_rng(0)
    for start in range(0, 160, 20):
        batch = random_batch(rng, [1], 3, 20, 8, starts=start)
        assert_same_statistics(sequential(session).forward(batch), sequential(reference).forward(batch), tolerance=1e-4)
        for each in (session, reference):
            sequential(each).commit(1, 2, 20)
    session.close()


@pytest.mark.parametrize("planned", [False, True], ids=["no graphs", "graphs"])
@pytest.mark.parametrize("count", [1, 2])
def test_recorded_traces(planned: bool, count: int, devices: int, tiny_bundle: Path, tmp_path: Path) -> None:
    if devices < count:
        pytest.skip(f"needs {count} CUDA devices, found {devices}")
    bundle = with_buckets(tiny_bundle, tmp_path / "b") if planned else Bundle.open(tiny_bundle)
    session = session_from_devices(bundle, [f"cuda:{number}" for number in range(count)])
    for name in ("lopa_bf4_bs32_full", "lopa_bf2_bs16_block"):
        comparisons = comparisons_of_file(TRACES / f"{name}.jsonl.gz", session, bundle.manifest)
        assert not [each.mismatch for each in comparisons if each.mismatch is not None]
    session.close()


def test_graphs_do_not_change_results(devices: int, tiny_bfloat16: Path, tmp_path: Path) -> None:
    """Compare captured and uncaptured runs of the same shape buckets in bfloat16."""
    bundle = with_buckets(tiny_bfloat16, tmp_path / "b", BUCKETS)
    with_graphs = open_session(bundle, "cuda:0")
    (bundle.path / BUCKETS_NAME).unlink()
    without = open_session(bundle, "cuda:0")
    rng = np.random.default_rng(0)
    for turn in range(6):
        batch = random_batch(rng, [1], 3, 30, 8, starts=30 * turn)
        assert_same_statistics(
            sequential(with_graphs).forward(batch), sequential(without).forward(batch), tolerance=0.01
        )
        for each in (with_graphs, without):
            sequential(each).commit(1, 1, 30)
    with_graphs.close()
    without.close()
