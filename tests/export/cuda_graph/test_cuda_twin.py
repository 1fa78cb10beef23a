"""Twins for CUDA in ONNX Runtime on the CPU, with ONNX functions for their operators, against the standard graph."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime as ort
import pytest
from tests.export.cuda_graph.cuda_functions import with_functions
from tests.export.graph_runs import opened, random_inputs

from lopa.runtime import contract
from lopa.runtime.bundle import Bundle
from lopa.runtime.bundle.manifest import GraphTwin

Arrays = dict[str, np.ndarray]
SIZES = [(1, 1, 1, 64, 1), (1, 5, 24, 64, 9), (3, 2, 7, 128, 1), (2, 3, 11, 64, 20)]
"""One row, several branches, several requests, more sampled positions than rows."""


def twin_of(bundle: Bundle) -> GraphTwin:
    (twin,) = (each for each in bundle.manifest.twins if each.provider == "cuda")
    return twin


def opened_twin(bundle: Bundle) -> ort.InferenceSession:
    """Open the twin with a function for each of lopa.cuda's operators."""
    options = ort.SessionOptions()
    options.intra_op_num_threads = 1
    options.log_severity_level = 3
    options.add_session_config_entry("session.model_external_initializers_file_folder_path", str(bundle.path))
    model = with_functions(bundle.path / twin_of(bundle).graph, bundle.manifest.dimensions.partial_rotary_size or 0)
    return ort.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])


def fused_arrays(bundle: Bundle) -> Arrays:
    """Return the twin's fused inputs, read from the weights file."""
    arrays = {}
    for fused in twin_of(bundle).fused:
        records = [bundle.manifest.tensors[name] for name in fused.parts]
        parts = [
            np.fromfile(bundle.weights, each.dtype, int(np.prod(each.shape)), offset=each.offset).reshape(each.shape)
            for each in records
        ]
        arrays[fused.name] = np.concatenate(parts, fused.axis)
    return arrays


def assert_agrees(bundle: Bundle, tolerance: float) -> None:
    """Compare both graphs on random inputs, up to `tolerance` times the largest value of an output."""
    bundle = bundle.with_dialect("standard")
    plain, twin, fused = opened(bundle.graph), opened_twin(bundle), fused_arrays(bundle)
    names = [value.name for value in plain.get_outputs()]
    for sizes in SIZES:
        inputs = random_inputs(bundle.graph, *sizes, seed=sum(sizes))
        tasks = {"attention_rows": (sizes[0] * sizes[1] * sizes[2], 3), "attention_tasks": (2, 8)}
        tasks |= {"attention_merges": (1, 4)}
        lists = {name: np.zeros(shape, np.int32) for name, shape in tasks.items()}
        lists["attention_chunks"] = np.zeros(sizes[0], np.int64)
        expected, found = plain.run(names, inputs), twin.run(names, {**inputs, **lists, **fused})
        for name, right, ours in zip(names, expected, found, strict=True):
            assert (ours.shape, ours.dtype) == (right.shape, right.dtype)
            if name == contract.TOPK_IDS:
                assert (ours[..., 0] == right[..., 0]).mean() > 0.95  # except near-ties
            else:
                allowed = tolerance * max(1.0, float(np.abs(right.astype(np.float32)).max()))
                np.testing.assert_allclose(ours, right, rtol=0, atol=allowed, err_msg=f"{name} {sizes}")


@pytest.mark.parametrize("family", ["llada", "sdar", "fast_dllm_v2", "llada2", "sdar_moe", "llada_moe"])
def test_families(family_bundle: Callable[..., Path], family: str) -> None:
    assert_agrees(Bundle.open(family_bundle(family)), 1e-5)


@pytest.mark.parametrize("name", ["wedlm", "stable_diffcoder"])
def test_families_of_one_layer(request: pytest.FixtureRequest, name: str) -> None:
    assert_agrees(request.getfixturevalue(name), 1e-5)


@pytest.mark.parametrize(
    ("name", "tolerance"),
    [("tiny_bundle", 1e-5), ("tiny_bundle_logits", 1e-5), ("tiny_rotary", 1e-5), ("tiny_half", 0.01)],
)
def test_outputs_and_types(request: pytest.FixtureRequest, name: str, tolerance: float) -> None:
    assert_agrees(Bundle.open(request.getfixturevalue(name)), tolerance)


def test_quantized(tiny_quantized: Path) -> None:
    assert_agrees(Bundle.open(tiny_quantized), 0.01)
