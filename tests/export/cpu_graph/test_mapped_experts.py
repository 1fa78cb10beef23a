"""Sparse bundles on the device `cpu`: one operator per layer, which reads only the experts that rows use."""

import shutil
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import pytest
from tests.export.graph_runs import statistics_of
from tests.runtime.random_windows import random_batch

from lopa.runtime.bundle import Bundle
from lopa.runtime.bundle.quantized_form import VARIABLE
from lopa.runtime.contract import Statistics
from lopa.runtime.cpu_kernels.kernel_library import DOMAIN, kernel_library
from lopa.runtime.sessions.numpy_forward import expert_weights

needs_kernels = pytest.mark.skipif(kernel_library() is None, reason="the kernels need x86-64 and a C++ compiler")
pytestmark = needs_kernels
SPARSE_LAYERS = 2
OPERATORS = {"float32": "ExpertsFloat", "float16": "ExpertsFloat16", "int8": "ExpertsInt8", "int4": "ExpertsInt4"}


def made(family_bundle: Callable[..., Path], family: str, kind: str) -> Path:
    return family_bundle(family, **{"quantize" if kind in ("int8", "int4") else "dtype": kind})


@pytest.mark.parametrize(
    ("family", "kind"), [("llada2", "float32"), ("sdar_moe", "float16"), ("llada2", "int8"), ("sdar_moe", "int4")]
)
def test_a_layer_is_one_node(family: str, kind: str, family_bundle: Callable[..., Path]) -> None:
    graph = Bundle.open(made(family_bundle, family, kind)).twin("cpu", "mapped")
    assert graph is not None
    nodes = onnx.load(graph, load_external_data=False).graph.node
    found = Counter(node.op_type for node in nodes if node.domain == DOMAIN and node.op_type.startswith("Experts"))
    assert found == {OPERATORS[kind]: SPARSE_LAYERS}
    assert any(node.name.startswith("wanted/") for node in nodes)  # the last layer computes sampled rows only


def test_experts_of_canvases_have_gelu(canvas_bundle: Path, canvas_bundle_int4: Path) -> None:
    for bundle, operator in ((canvas_bundle, "ExpertsFloat"), (canvas_bundle_int4, "ExpertsInt4")):
        graph = Bundle.open(bundle).twin("cpu", "mapped")
        assert graph is not None
        nodes = [node for node in onnx.load(graph, load_external_data=False).graph.node if node.op_type == operator]
        assert [{each.name: each.i for each in node.attribute} for node in nodes] == [{"gelu": 1}] * 3


@pytest.mark.parametrize(("family", "form"), [("llada2", "mapped"), ("sdar_moe", "packed"), ("llada_moe", "mapped")])
def test_float32_agrees_with_numpy(
    family: str, form: str, family_bundle: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    bundle = Bundle.open(made(family_bundle, family, "float32"))
    monkeypatch.setenv(VARIABLE, form)
    found, exact = statistics_of(bundle), statistics_of(bundle, "numpy")
    assert (found.topk_ids[..., 0] == exact.topk_ids[..., 0]).mean() > 0.98
    difference = np.abs(found.topk_logprobs - exact.topk_logprobs).max(axis=-1)
    assert np.quantile(difference, 0.98) < 3e-4  # the others may have another expert at a near-tie
    assert np.quantile(np.abs(found.entropy - exact.entropy), 0.98) < 3e-4


def test_int8_forms_compute_alike(family_bundle: Callable[..., Path], monkeypatch: pytest.MonkeyPatch) -> None:
    bundle, found = Bundle.open(made(family_bundle, "llada2", "int8")), []
    for form in ("mapped", "packed"):
        monkeypatch.setenv(VARIABLE, form)
        found.append(statistics_of(bundle))
    same = found[0].topk_ids[..., 0] == found[1].topk_ids[..., 0]
    assert same.mean() > 0.97
    np.testing.assert_allclose(np.median(found[0].entropy - found[1].entropy), 0, atol=1e-4)


@pytest.mark.parametrize("kind", ["float32", "int8", "int4"])
def test_unused_experts_are_not_read(
    kind: str, family_bundle: Callable[..., Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every bit of the experts that a forward does not choose is set: NaN as a number, the largest scale as one."""
    source = made(family_bundle, "llada2", kind)
    used = _used_experts(Bundle.open(source), monkeypatch)
    assert 0 < sum(map(len, used.values())) < 32
    changed = tmp_path / "bundle"
    shutil.copytree(source, changed)
    manifest = Bundle.open(source).manifest
    (changed / manifest.weights).chmod(0o644)
    data = np.memmap(changed / manifest.weights, np.uint8, "r+")
    for name, record in manifest.tensors.items():
        if ".experts." in name:
            size = record.length // record.shape[0]
            for expert in set(range(record.shape[0])) - used[int(name.split(".")[1])]:
                data[record.offset + expert * size : record.offset + (expert + 1) * size] = 255
    data.flush()
    monkeypatch.undo()
    before, after = _one_row(source), _one_row(changed)
    np.testing.assert_array_equal(before.topk_ids, after.topk_ids)
    np.testing.assert_array_equal(before.topk_logprobs, after.topk_logprobs)


def _one_row(bundle: Path, device: str = "cpu") -> Statistics:
    return statistics_of(Bundle.open(bundle), device, random_batch(np.random.default_rng(3), [0], 1, 1, 1))


def _used_experts(bundle: Bundle, monkeypatch: pytest.MonkeyPatch) -> dict[int, set[int]]:
    """Return the experts that any rounding of `_one_row` may choose, by layer: the chosen ones and close seconds."""
    used: dict[int, set[int]] = {}
    layers = iter(i for i in range(3) if i not in bundle.manifest.dimensions.moe.dense_layers)  # type: ignore[union-attr]

    def recorded(logits: np.ndarray, bias: np.ndarray, moe: object) -> np.ndarray:
        weights = expert_weights(logits, bias, moe)  # type: ignore[arg-type]
        moved = [expert_weights(logits + shift, bias, moe) for shift in _SHIFTS * 0.2]  # type: ignore[arg-type]
        used[next(layers)] = {int(each) for w in (weights, *moved) for each in np.flatnonzero(w.any(axis=0))}
        return weights

    monkeypatch.setattr("lopa.runtime.sessions.numpy_forward.expert_weights", recorded)
    _one_row(bundle.path, "numpy")
    return used


_SHIFTS = np.random.default_rng(5).standard_normal((20, 16)).astype(np.float32)
