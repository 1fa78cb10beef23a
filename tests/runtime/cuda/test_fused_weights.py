"""Fused matrices in device memory equal those of numpy, and need little memory of the host."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.runtime.cuda.stand_in_cudart import StandInCudart

from lopa.runtime.bundle import Bundle
from lopa.runtime.cuda import cuda_memory
from lopa.runtime.cuda.cuda_calls import load_cuda
from lopa.runtime.cuda.cuda_memory import CudaMemory
from lopa.runtime.cuda.fused_weights import fused_weights


@pytest.mark.parametrize("most", [2**25, 10_000, 1])
@pytest.mark.parametrize("kind", [None, "int4", "fp8"])
def test_fused_matrices(
    export_tiny: Callable[..., Path], cudart: StandInCudart, monkeypatch: pytest.MonkeyPatch, most: int, kind: Any
) -> None:
    """Matrices are staged whole, in parts, and row by row. Quantized ones are bytes, FP8's joined by rows."""
    monkeypatch.setattr(cuda_memory, "_MAX_STAGED", most)
    bundle = Bundle.open(export_tiny(quantize=kind, with_logits=False))
    (twin,) = (each for each in bundle.manifest.twins if each.provider == "cuda")
    memory = CudaMemory(load_cuda(), 0)
    found = fused_weights(bundle, twin, memory)
    per_layer = 3 if kind is None else 7  # two matrices and a bias; scales, and two matrices alone
    assert len(found) == per_layer * bundle.manifest.dimensions.layers + (kind == "int4")
    expected_bytes = 0
    for fused in twin.fused:
        records = [bundle.manifest.tensors[name] for name in fused.parts]
        parts = [
            np.fromfile(bundle.weights, np.uint8, each.length, offset=each.offset).reshape(
                [1, *each.shape[:-1]][-1], -1
            )
            for each in records
        ]
        expected = np.concatenate(parts, -1 if len(records[0].shape) == 1 else fused.axis)
        form, address = found[fused.name]
        assert (form.size, address % 512) == (expected.nbytes, 0)
        assert np.array_equal(cudart.view(address, expected.nbytes), expected.ravel())
        expected_bytes += expected.nbytes
    assert expected_bytes <= cudart.allocated(0) < expected_bytes + 1024 * (len(found) + 1)
    memory.close()
