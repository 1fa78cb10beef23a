"""Errors of the operators of lopa.cuda and of their host library, in ONNX Runtime over the stand-in driver."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from tests.runtime.cuda_kernels.refused_calls import CALLS

pytest.importorskip("triton", reason="needs Triton to compile the kernels that the stand-in loads")
ROOT = Path(__file__).resolve().parents[3]
LOADS = {
    "no image": "cuLibraryLoadData of swiglu.fp32 returned CUDA_ERROR_INVALID_IMAGE",
    "no entry": "cuLibraryGetKernel of swiglu.fp32 returned CUDA_ERROR_NOT_FOUND",
    "large blocks": "cuKernelSetAttribute of swiglu.fp32 returned CUDA_ERROR_INVALID_VALUE",
    "many arguments": "swiglu.fp32 has too many parameters",
    "in a capture": "cuLibraryLoadData of attention_merge.fp32.64 returned CUDA_ERROR_INVALID_VALUE",
}
MISSING = {"before loading": "swiglu.fp32", "statistics without a kernel": "statistics_partials.fp32.16"}


@pytest.fixture(scope="module")
def found() -> dict[str, str]:
    program = [sys.executable, "-m", "tests.runtime.cuda_kernels.refused_calls"]
    environment = os.environ | {"PYTHONPATH": f"{ROOT / 'src'}:{ROOT}"}
    done = subprocess.run(program, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=600, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    read: dict[str, str] = json.loads(done.stdout)
    return read


def test_calls_are_run_or_refused(found: dict[str, str]) -> None:
    """A graph that fits no kernel raises. It must not read other memory, and nothing may end the process."""
    assert not found["errors of references"]
    for name in CALLS.keys() - MISSING:
        if " " in name:
            assert "lopa.cuda: inputs of other shapes; expected" in found[name], name
        else:
            assert found[name] == "", name
    for name, variant in MISSING.items():
        assert f"lopa.cuda: no kernel {variant} is loaded for the current device" in found[name]


@pytest.mark.parametrize("name", LOADS)
def test_kernels_that_the_driver_rejects(found: dict[str, str], name: str) -> None:
    assert f"the kernels for cuda:0 cannot be loaded: {LOADS[name]}" in found[name]
