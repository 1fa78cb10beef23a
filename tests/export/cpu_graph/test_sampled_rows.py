"""The last layer computed for sampled positions only, against the graph that computes all rows."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx_ir as ir
import onnxruntime as ort
import pytest
from tests.export.graph_runs import random_inputs

from lopa.export.cpu_graph.sampled_rows import SampledRowsPass
from lopa.runtime import contract
from lopa.runtime.bundle import Bundle
from lopa.runtime.contract.model_part import ModelPart, whole_model

SIZES = [(1, 1, 1, 64, 1), (1, 5, 24, 64, 9), (3, 2, 7, 128, 1), (2, 3, 11, 64, 20)]
"""One row, several branches, several requests, more sampled positions than rows."""


def opened(model: ir.Model, weights_folder: Path) -> ort.InferenceSession:
    """Open the model on one thread, with the weights in `weights_folder`."""
    options = ort.SessionOptions()
    options.intra_op_num_threads = 1
    options.add_session_config_entry("session.model_external_initializers_file_folder_path", str(weights_folder))
    return ort.InferenceSession(ir.to_proto(model).SerializeToString(), options, providers=["CPUExecutionProvider"])


def assert_agrees(graph: Path, bundle: Bundle, part: ModelPart, tolerance: float) -> None:
    """Compare the graph before and after the pass. Afterwards its MLP has one row per sampled position."""
    standard, changed = ir.load(graph), ir.load(graph)
    assert SampledRowsPass(part)(changed).modified
    last = f"layers.{part.end - 1}.mlp/Mul_1"
    seen = next(node.outputs[0] for node in changed.graph if node.name == last)
    seen.name = "seen"
    changed.graph.outputs.append(seen)
    before, after = opened(standard, bundle.path), opened(changed, bundle.path)
    names = [value.name for value in standard.graph.outputs]
    for sizes in SIZES:
        inputs = random_inputs(graph, *sizes, seed=sum(sizes))
        expected, found = before.run(names, inputs), after.run([*names, "seen"], inputs)
        assert found.pop().shape[:2] == (sizes[0] * sizes[1], sizes[-1])
        for name, right, ours in zip(names, expected, found, strict=True):
            assert ours.shape == right.shape
            if name == contract.TOPK_IDS:
                assert (ours[..., 0] == right[..., 0]).mean() > 0.95  # except near-ties
            else:
                allowed = tolerance * max(1.0, float(np.abs(right.astype(np.float32)).max()))
                np.testing.assert_allclose(ours, right, rtol=0, atol=allowed, err_msg=f"{name} {sizes}")


def test_quantized_matrices(tiny_quantized: Path) -> None:
    opened_bundle = Bundle.open(tiny_quantized)
    part = whole_model(opened_bundle.manifest.dimensions.layers)
    assert_agrees(opened_bundle.graph, opened_bundle, part, 0.01)


@pytest.mark.parametrize(("bundle", "tolerance"), [("tiny_bundle_logits", 1e-5), ("tiny_half", 0.01)])
def test_types(bundle: str, tolerance: float, request: pytest.FixtureRequest) -> None:
    opened_bundle = Bundle.open(request.getfixturevalue(bundle))
    part = whole_model(opened_bundle.manifest.dimensions.layers)
    assert_agrees(opened_bundle.graph, opened_bundle, part, tolerance)


@pytest.mark.parametrize("family", ["llada", "sdar"])
def test_families(family_bundle: Callable[..., Path], family: str) -> None:
    """Check families without biases, with query and key norms, and the last of two stages."""
    bundle = Bundle.open(family_bundle(family)).with_dialect("standard")
    layers = bundle.manifest.dimensions.layers
    assert_agrees(bundle.graph, bundle, whole_model(layers), 1e-5)
    for stage in bundle.manifest.stages[1:]:
        part = ModelPart(stage.first_layer, stage.end_layer, layers)
        assert_agrees(bundle.path / stage.graph, bundle, part, 1e-5)


def test_a_graph_without_statistics_is_unchanged(tiny_staged: Path) -> None:
    bundle = Bundle.open(tiny_staged)
    first = bundle.manifest.stages[0]
    model = ir.load(bundle.path / first.graph)
    part = ModelPart(first.first_layer, first.end_layer, bundle.manifest.dimensions.layers)
    assert not SampledRowsPass(part)(model).modified
