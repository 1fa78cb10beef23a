"""Forwards in shapes that no shape bucket holds."""

from pathlib import Path

import pytest
from tests.runtime.cuda.stand_in_ort import StandInOrt
from tests.runtime.cuda.test_session import BUCKETS

from lopa.runtime.bundle import Bundle
from lopa.runtime.contract.sizes import Sizes
from lopa.runtime.cuda.cuda_calls import load_cuda
from lopa.runtime.cuda.cuda_forward import CudaForward
from lopa.runtime.cuda.cuda_memory import CudaMemory


@pytest.mark.parametrize(("window", "expected", "with_buckets"), [(97, 100, True), (100, 100, True), (101, 104, False)])
def test_windows_are_rounded_up_for_fused_attention(
    window: int, expected: int, with_buckets: bool, tiny_bundle: Path, machine: StandInOrt
) -> None:
    memory = CudaMemory(load_cuda(), 0)
    engine = CudaForward(Bundle.open(tiny_bundle), "cuda:0", memory, BUCKETS if with_buckets else [])
    shape = engine.bucket_for(Sizes(2, 3, window, 128, 5))
    engine.close()
    memory.close()
    assert (shape.requests, shape.branches, shape.window, shape.prefix, shape.wanted) == (2, 3, expected, 128, 5)
    assert machine.plain_runs == 0
