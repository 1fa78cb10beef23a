"""Results and errors of the operators of lopa.cuda and of their library, in ONNX Runtime over the stand-in driver."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.plugins.rms_norm_reference import rms_norm_reference
from tests.plugins.split_rotary_reference import split_rotary_reference
from tests.plugins.swiglu_reference import swiglu_reference
from tests.plugins.token_statistics_reference import token_statistics_reference
from tests.runtime.cuda_kernels.operator_calls import BATCH, CALLS, CHUNKS, LENGTHS, PADDED, PREFIXES, RIGHT

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
def arrays(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the path of the file with the results."""
    return tmp_path_factory.mktemp("operators") / "results.npz"


@pytest.fixture(scope="module")
def found(arrays: Path) -> dict[str, str]:
    program = [sys.executable, "-m", "tests.runtime.cuda_kernels.operator_calls", str(arrays)]
    environment = os.environ | {"PYTHONPATH": f"{ROOT / 'src'}:{ROOT}"}
    done = subprocess.run(program, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=600, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    read: dict[str, str] = json.loads(done.stdout)
    return read


def expected(name: str) -> tuple[Any, ...]:
    """Return the outputs of a call in float64."""
    operator, attributes, inputs, _ = RIGHT[name]
    if operator == "RmsNorm":
        return rms_norm_reference(inputs[0], None, inputs[1], attributes["epsilon"])[:1]
    if operator == "SkipRmsNorm":
        return rms_norm_reference(*inputs, attributes["epsilon"])
    if operator == "SwiGlu":
        return (swiglu_reference(*(np.split(inputs[0], 2, -1) if len(inputs) == 1 else inputs)),)
    if operator == "SplitRotary":
        return rotated(*inputs, *[None] * (8 - len(inputs)), epsilon=attributes.get("epsilon", 0.0))
    if operator == "BranchAttention":
        return (attended(*inputs, attributes["layer"]),)
    return token_statistics_reference(*inputs, 8)


def rotated(query: Any, cos: Any, sin: Any, key: Any, value: Any, bias: Any, *norms: Any, epsilon: float) -> Any:
    if key is None:
        query, key, value = np.split(query, [64, 96], -1)
    heads = [each.reshape(20, -1, 16) for each in (query, key, value)]
    bias, norms = None if bias is None else bias.reshape(8, 16), None if norms[0] is None else norms
    queries, *others = split_rotary_reference(*heads, bias, norms, cos, sin, epsilon=epsilon)
    return queries.reshape(1, 20, 64), *others


def attended(query: Any, key: Any, value: Any, layer: int) -> Any:
    """Return dense attention, one row and head after another. A row that sees nothing gives zeros."""
    wanted = np.zeros((1, PADDED, 4, 16))
    rows = query.reshape(PADDED, 4, 16).astype(np.float64)
    first_chunk = [0, *np.cumsum([-(-prefix // 64) for prefix in PREFIXES])]
    masks = np.split(BATCH.mask, np.cumsum(LENGTHS**2))
    for window, (slot, length, start) in enumerate(zip(BATCH.slots, LENGTHS, BATCH.starts, strict=True)):
        past = CHUNKS[first_chunk[slot] : first_chunk[slot + 1], 2 * layer : 2 * layer + 2].transpose(1, 2, 0, 3, 4)
        keys, values = past.reshape(2, 2, -1, 16)[:, :, : PREFIXES[slot]]
        for row, head in np.ndindex(length, 4):
            own = start + np.flatnonzero(masks[window].reshape(length, length)[row])
            seen = np.concatenate([keys[head // 2], key[own, head // 2]])
            weights = np.exp(seen @ rows[start + row, head] / 4.0)
            mixed = weights @ np.concatenate([values[head // 2], value[own, head // 2]])
            wanted[0, start + row, head] = mixed / (weights.sum() or 1.0)
    return wanted.reshape(query.shape)


@pytest.mark.parametrize("name", RIGHT)
def test_results(found: dict[str, str], arrays: Path, name: str) -> None:
    assert not found["errors of references"]
    with np.load(arrays) as read:
        for index, wanted in enumerate(expected(name)):
            ours = read[f"{name} {index}"]
            assert ours.shape == wanted.shape
            np.testing.assert_allclose(ours, wanted, rtol=2e-5, atol=2e-5)


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
    assert "update the NVIDIA driver" not in found[name]
