"""Fused matrices in device memory equal those of numpy, and need little memory of the host."""

from pathlib import Path

import numpy as np
import pytest
from tests.runtime.cuda.stand_in_cudart import StandInCudart

from lopa.runtime.bundle import Bundle
from lopa.runtime.cuda import cuda_memory
from lopa.runtime.cuda.cuda_calls import load_cuda
from lopa.runtime.cuda.cuda_memory import CudaMemory
from lopa.runtime.cuda.fused_weights import fused_weights


@pytest.mark.parametrize("most", [2**25, 10_000, 1])
def test_fused_matrices(tiny_bundle: Path, cudart: StandInCudart, monkeypatch: pytest.MonkeyPatch, most: int) -> None:
    """Matrices are staged whole, in parts, and row by row."""
    monkeypatch.setattr(cuda_memory, "_MAX_STAGED", most)
    bundle = Bundle.open(tiny_bundle)
    (twin,) = (each for each in bundle.manifest.twins if each.provider == "cuda")
    memory = CudaMemory(load_cuda(), 0)
    found = fused_weights(bundle, twin, memory)
    assert len(found) == 3 * bundle.manifest.dimensions.layers  # two matrices and a bias
    expected_bytes = 0
    for fused in twin.fused:
        records = [bundle.manifest.tensors[name] for name in fused.parts]
        parts = [
            np.fromfile(bundle.weights, np.float32, int(np.prod(each.shape)), offset=each.offset).reshape(each.shape)
            for each in records
        ]
        expected = np.concatenate(parts, -1)
        form, address = found[fused.name]
        assert (form.shape, address % 512) == (expected.shape, 0)
        assert np.array_equal(cudart.view(address, expected.nbytes).view(np.float32), expected.ravel())
        expected_bytes += expected.nbytes
    assert expected_bytes <= cudart.allocated(0) < expected_bytes + 1024 * (len(found) + 1)
    memory.close()
