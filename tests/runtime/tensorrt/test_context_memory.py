"""GPU memory of contexts is measured and reserved, for further contexts and for weights that stay on the GPU."""

import shutil
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest
from tests.buckets import bucket
from tests.runtime.cuda.stand_in_graphs import StandInGraphs
from tests.runtime.random_windows import assert_same_statistics, random_batch
from tests.runtime.sequential import sequential
from tests.runtime.tensorrt.machines import built, with_verified
from tests.runtime.tensorrt.stand_in_engine import AUTOMATIC, PERSISTENT, SCRATCH

from lopa.runtime.accelerator.device_forward import GraphArrays
from lopa.runtime.bundle import Bundle
from lopa.runtime.sessions.session import open_session
from lopa.runtime.tensorrt.contexts import ContextMemory
from lopa.runtime.tensorrt.tensorrt_manifest import BuildFlags

BUCKETS = [bucket(1, 2, 48, 64), bucket(2, 3, 64, 192)]


def test_context_size_is_the_decrease_of_free_memory() -> None:
    free = [100]
    memory = ContextMemory(lambda: free[0], reserve=20)

    def allocate(size: int) -> str:
        free[0] -= size
        return "context"

    assert memory.measure(0, lambda: allocate(30)) == "context"
    assert memory.measure(1, lambda: allocate(5)) == "context"
    assert memory.measure(1, lambda: allocate(3)) == "context"  # remembers the larger one
    assert memory.needed == 30 + 5 + 20
    assert (free[0], memory.has_room(0), memory.has_room(1)) == (62, True, True)
    free[0] = 49
    assert (memory.has_room(0), memory.has_room(1)) == (False, True)
    assert memory.measure(0, lambda: allocate(-40)) == "context"  # others freed memory meanwhile
    assert memory.needed == 55


@pytest.fixture
def bundle(tiny_bundle: Path, tmp_path: Path) -> Bundle:
    return Bundle.open(Path(shutil.copytree(tiny_bundle, tmp_path / "bundle")))


def test_weight_budget_reserves_contexts_and_prefixes(bundle: Bundle, trt: ModuleType, cuda: StandInGraphs) -> None:
    with_verified(built(bundle.path, trt, BUCKETS, BuildFlags(weight_streaming=True)))
    session = open_session(bundle, "tensorrt:0")
    prefixes = max(map(GraphArrays(bundle.manifest).prefix_bytes, BUCKETS))
    assert prefixes == 2 * 192 * 2 * 5 * 2 * 32 * 4  # key and value of five layers in float32
    scratch = SCRATCH + len(BUCKETS)
    assert trt.engines.budgets == [0, AUTOMATIC - 3 * PERSISTENT - prefixes - scratch]
    sequential(session).forward(random_batch(np.random.default_rng(0), (0,), 2, 40, 8))
    session.close()


@pytest.mark.parametrize("memory", [True, False])
def test_parts_share_a_context_if_memory_is_full(
    memory: bool, bundle: Bundle, trt: ModuleType, cuda: StandInGraphs, monkeypatch: pytest.MonkeyPatch
) -> None:
    with_verified(built(bundle.path, trt, BUCKETS[:1]))
    monkeypatch.setattr(ContextMemory, "has_room", lambda _room, _profile: memory)
    plain, session = open_session(bundle, "cpu", threads=1), open_session(bundle, "tensorrt:0")
    batch = random_batch(np.random.default_rng(0), (0,), 10, 40, 8)
    for _ in range(3):
        assert_same_statistics(sequential(session).forward(batch), sequential(plain).forward(batch))
    assert len(cuda.graphs) == (5 if memory else 0)
    session.close()
    plain.close()
