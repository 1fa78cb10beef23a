"""Results and errors of the operators of lopa.cuda and of their library, in ONNX Runtime over the stand-in driver."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.plugins.experts_reference import experts_reference
from tests.plugins.rms_norm_reference import rms_norm_reference
from tests.plugins.rounding_reference import E4M3
from tests.plugins.split_rotary_reference import split_rotary_reference
from tests.plugins.swiglu_reference import swiglu_reference
from tests.plugins.token_statistics_reference import token_statistics_reference
from tests.runtime.cuda_kernels.operator_calls import (
    BATCH,
    CALLS,
    CHUNKS,
    LENGTHS,
    MATRICES,
    PADDED,
    POSITIONS,
    PREFIXES,
    RIGHT,
    STARTS,
)
from tests.shared_folder import shared_folder

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
def found(arrays: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    program = [sys.executable, "-m", "tests.runtime.cuda_kernels.operator_calls", str(arrays)]
    program += [str(shared_folder(tmp_path_factory))]
    environment = os.environ | {"PYTHONPATH": f"{ROOT / 'src'}:{ROOT}"}
    done = subprocess.run(program, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=600, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    read: dict[str, str] = json.loads(done.stdout)
    return read


def expected(name: str) -> tuple[Any, ...]:
    """Return the outputs of a call in float64. Rows that are rounded to 8 bits are not rounded here."""
    operator, attributes, inputs, _ = RIGHT[name]
    operator = operator.removeprefix("Rounded")
    if operator == "RmsNorm":
        return rms_norm_reference(inputs[0], None, inputs[1], attributes["epsilon"])[:1]
    if operator == "SkipRmsNorm":
        delta = scaled(inputs[1], *inputs[3:])
        return rms_norm_reference(inputs[0], delta, inputs[2], attributes["epsilon"])
    if operator == "SwiGlu":
        fused = len(inputs) == 1 or inputs[1] is None
        factors = np.split(scaled(inputs[0], *inputs[2:]), 2, -1) if fused else inputs
        return (swiglu_reference(*factors, gelu="gelu" in attributes),)
    if operator == "SplitRotary":
        product = scaled(inputs[0], *inputs[8:])
        return rotated(product, *inputs[1:8], *[None] * (8 - len(inputs)), attributes=attributes)
    if operator == "BranchAttention":
        return (attended(*inputs, attributes),)
    if operator == "RoundRows":
        return (inputs[0],)
    if operator == "ScaleRows":
        return (scaled(*inputs),)
    if operator == "Int4Product":
        low, high = (((inputs[1] >> shift & 15) ^ 8) - 8.0 for shift in (0, 4))
        numbers = np.stack([low, high], -1).reshape(len(low), -1)
        return (inputs[0] @ (numbers * inputs[2].astype(np.float64).repeat(32, 0)),)
    if operator == "ProductFloat":
        kind = E4M3 if attributes else np.dtype(np.int8)
        rows, matrix = (each.view(kind).astype(np.float64) for each in inputs[:2])
        return (rows @ (matrix.T if attributes else matrix) / inverse_factor(rows.shape[-1]),)
    if operator.startswith("Experts"):
        rows, *routed = (each.reshape(-1, each.shape[-1]) for each in inputs[:3])
        matrices = MATRICES[name.removeprefix("experts in ") if " in " in name else "float"]
        return (experts_reference(rows, *routed, *matrices, gelu="gelu" in attributes).reshape(inputs[0].shape),)
    return token_statistics_reference(*inputs, 8)


def inverse_factor(inputs: int) -> float:
    """Return the power of two by which sums of `inputs` e4m3 products are divided to be float16 numbers."""
    return float(2 ** max(0, int(448 * 448 * inputs / 65504 - 1e-9).bit_length()))


def scaled(product: Any, rows: Any = None, columns: Any = None) -> Any:
    return product if rows is None else product * columns * rows.reshape(*product.shape[:-1], 1)


def rotated(query: Any, cos: Any, sin: Any, key: Any, value: Any, bias: Any, *norms: Any, attributes: Any) -> Any:
    if key is None:
        query, key, value = np.split(query, [64, 96], -1)
    if "width" in attributes:  # values are keys
        value, norms = key, (*norms, np.ones(16))
    heads = [each.reshape(20, -1, 16) for each in (query, key, value)]
    bias, norms = None if bias is None else bias.reshape(8, 16), None if norms[0] is None else norms
    queries, *others = split_rotary_reference(*heads, bias, norms, cos, sin, epsilon=attributes.get("epsilon", 0.0))
    if "width" in attributes:
        others = [np.pad(each.reshape(20, 1, 32), [(0, 0), (0, 0), (0, attributes["width"] - 32)]) for each in others]
    return queries.reshape(1, 20, 64), *others


def attended(query: Any, key: Any, value: Any, attributes: Any) -> Any:
    """Return dense attention, one row and head after another. A row that sees nothing gives zeros."""
    key, value = (each.reshape(PADDED, -1)[:, :32].reshape(PADDED, 2, 16) for each in (key, value))
    starts = STARTS if "sliding" in attributes else np.zeros_like(STARTS)
    layer, scale = attributes["layer"], attributes.get("scale", 0.25)
    wanted = np.zeros((1, PADDED, 4, 16))
    rows = query.reshape(PADDED, 4, 16).astype(np.float64)
    first_chunk = [0, *np.cumsum([-(-prefix // 64) for prefix in PREFIXES])]
    masks = np.split(BATCH.mask, np.cumsum(LENGTHS**2))
    for window, (slot, length, start) in enumerate(zip(BATCH.slots, LENGTHS, BATCH.starts, strict=True)):
        past = CHUNKS[first_chunk[slot] : first_chunk[slot + 1], 2 * layer : 2 * layer + 2].transpose(1, 2, 0, 3, 4)
        keys, values = past.reshape(2, 2, -1, 16)[:, :, : PREFIXES[slot]]
        for row, head in np.ndindex(length, 4):
            own = start + np.flatnonzero(masks[window].reshape(length, length)[row])
            first = starts[start + row]
            own, begin = own[POSITIONS[own] >= first], max(0, first)
            seen = np.concatenate([keys[head // 2, begin:], key[own, head // 2]])
            weights = np.exp(seen @ rows[start + row, head] * scale)
            mixed = weights @ np.concatenate([values[head // 2, begin:], value[own, head // 2]])
            wanted[0, start + row, head] = mixed / (weights.sum() or 1.0)
    return wanted.reshape(query.shape)


@pytest.mark.parametrize("name", RIGHT)
def test_results(found: dict[str, str], arrays: Path, name: str) -> None:
    assert not found["errors of references"]
    operator, attributes, _, count = RIGHT[name]
    rounds, wanted = operator.startswith("Round") and "Product" not in operator, expected(name)
    with np.load(arrays) as read:
        found = [read[f"{name} {index}"] for index in range(count)]
        if rounds:
            rows, own = found[0], found[1].reshape(*found[0].shape[:-1], 1) / inverse_factor(found[0].shape[-1])
            rows = rows.view(E4M3 if attributes.get("e4m3") else np.int8) * own
            np.testing.assert_allclose(
                own[..., 0] * (448 if attributes.get("e4m3") else 127), abs(wanted[0]).max(-1), 1e-6
            )
            assert (
                abs(rows - wanted[0])
                <= np.maximum(abs(wanted[0]) / 16 if attributes.get("e4m3") else 0, own / 2 + 1e-6)
            ).all()
            found, wanted = found[2:], wanted[1:]
        for ours, theirs in zip(found, wanted, strict=True):
            assert ours.shape == theirs.shape
            np.testing.assert_allclose(ours, theirs, rtol=2e-5, atol=2e-5 * max(1, abs(theirs).max()))


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


def test_plans_of_cublaslt_are_freed(found: dict[str, str]) -> None:
    """Each has a product and three matrices."""
    assert 4 * 1000 <= int(found["objects of cuBLASLt"]) <= 4 * 1024


@pytest.mark.parametrize("name", LOADS)
def test_kernels_that_the_driver_rejects(found: dict[str, str], name: str) -> None:
    assert f"the kernels for cuda:0 cannot be loaded: {LOADS[name]}" in found[name]
    assert "update the NVIDIA driver" not in found[name]
