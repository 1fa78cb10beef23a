"""The exported graph: its signature and operators, and its results against the traced torch module."""

from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import torch
from tests.export.graph_runs import Arrays, opened, random_inputs

from lopa.export.checkpoint.config import config_from_checkpoint
from lopa.export.graph.module import ContractForward
from lopa.runtime.bundle import Bundle
from lopa.runtime.bundle.network import network_from_dimensions
from lopa.runtime.contract import TILE, input_names, output_names
from lopa.tiny import CHECKPOINT

DIMENSIONS = config_from_checkpoint(CHECKPOINT).dimensions
LAYERS = DIMENSIONS.layers
ALLOWED = {
    *("Add", "Attention", "Cast", "Concat", "Constant", "Cos", "Div", "Exp", "Expand", "Gather", "Log", "MatMul"),
    *("Mul", "RMSNormalization", "Range", "ReduceSum", "Reshape", "RotaryEmbedding", "Shape", "Sigmoid", "Sin"),
    *("Slice", "Squeeze", "Sub", "TopK", "Transpose", "Unsqueeze"),
}


def _module(bundle: Path) -> ContractForward:
    """Return the module in float32 with the bundle's weights."""
    opened = Bundle.open(bundle)
    network = network_from_dimensions(opened.manifest.dimensions)
    module = ContractForward(network, dtype=torch.float32, with_logits=True)
    data = opened.weights.read_bytes()
    state = {}
    for name, record in opened.manifest.tensors.items():
        values = np.frombuffer(data[record.offset : record.offset + record.length], record.dtype)
        state[name] = torch.tensor(values.astype(np.float32).reshape(record.shape))
    module.load_state_dict(state)
    return module.eval()


def _from_torch(module: ContractForward, inputs: Arrays) -> list[np.ndarray]:
    tensors = [torch.from_numpy(inputs[name]) for name in input_names(LAYERS)]
    past = [tensor.float() for tensor in tensors[6:]]
    with torch.no_grad():
        return [output.numpy() for output in module(*tensors[:6], past)]


def _check_against_torch(found: list[np.ndarray], expected: list[np.ndarray], *, tolerance: float) -> None:
    names = output_names(LAYERS, with_logits=True)
    assert len(found) == len(expected) == len(names)
    for name, ours, theirs in zip(names, found, expected, strict=True):
        assert ours.shape == theirs.shape
        if name == "topk_ids":
            # Only candidates of nearly equal probability may change their order.
            gaps = -np.diff(expected[1], axis=-1)
            clear = np.concatenate([gaps, gaps[..., -1:]], -1) > 2 * tolerance
            clear[..., 1:] &= gaps > 2 * tolerance
            clear[..., -1] = False
            assert clear.any()
            np.testing.assert_array_equal(ours[clear], theirs[clear])
        else:
            # A small sum of large numbers has the error of the large numbers.
            allowed = tolerance * max(1.0, float(np.abs(theirs).max()))
            np.testing.assert_allclose(ours, theirs, rtol=0, atol=allowed, err_msg=name)


SIZES = [
    (1, 1, 1, TILE, 1),
    (1, 1, 64, TILE, 64),
    (1, 5, 40, 2 * TILE, 9),
    (4, 1, 1, TILE, 2),
    (1, 6, 1, TILE, 1),
    (3, 2, 7, 3 * TILE, 1),
    (2, 3, 11, TILE, 7),
    (2, 2, 3, 5, 20),
]


def test_onnx_runtime_agrees_with_the_module(tiny_bundle_logits: Path) -> None:
    graph = Bundle.open(tiny_bundle_logits).graph
    session, module = opened(graph), _module(tiny_bundle_logits)
    for sizes in SIZES:
        inputs = random_inputs(graph, *sizes, seed=sum(sizes))
        _check_against_torch(session.run(None, inputs), _from_torch(module, inputs), tolerance=1e-4)


def test_a_float16_bundle(tiny_half: Path) -> None:
    graph = Bundle.open(tiny_half).graph
    session, module = opened(graph), _module(tiny_half)
    types = {value.name: value.type for value in (*session.get_inputs(), *session.get_outputs())}
    assert {kind for name, kind in types.items() if "key_values" in name} == {"tensor(float16)"}
    assert {types[name] for name in ("temperature", "topk_logprobs", "entropy")} == {"tensor(float)"}
    for sizes in SIZES[:4]:
        inputs = random_inputs(graph, *sizes, seed=7)
        _check_against_torch(session.run(None, inputs), _from_torch(module, inputs), tolerance=0.1)
    record = Bundle.open(tiny_half).manifest.tensors["head.weight"]
    assert (record.dtype, record.length) == ("float16", 2 * 192 * 1024)


def _type(value: onnx.ValueInfoProto) -> tuple[int, list[Any]]:
    tensor = value.type.tensor_type
    return tensor.elem_type, [axis.dim_param or axis.dim_value for axis in tensor.shape.dim]


@pytest.mark.parametrize("with_logits", [False, True])
def test_the_signature_is_the_contract_s(tiny_bundle: Path, tiny_bundle_logits: Path, with_logits: bool) -> None:
    graph = onnx.load(Bundle.open(tiny_bundle_logits if with_logits else tiny_bundle).graph, load_external_data=False)
    f32, i64, truth = onnx.TensorProto.FLOAT, onnx.TensorProto.INT64, onnx.TensorProto.BOOL
    rbw, rbq = ["requests", "branches", "window"], ["requests", "branches", "rows"]
    past = (f32, ["requests", 2, "prefix", 32])
    fresh = (f32, ["requests", "branches", 2, "window", 32])
    inputs = [(i64, rbw), (i64, rbw), (truth, [*rbw, "window"]), (truth, ["requests", "prefix"]), (i64, rbq)]
    inputs += [(f32, ["requests"]), *[past] * 10]
    outputs = [(i64, [*rbq, 8]), (f32, [*rbq, 8]), (f32, rbq), *[fresh] * 10, *[(f32, [*rbq, 1024])] * with_logits]
    assert [value.name for value in graph.graph.input] == input_names(LAYERS)
    assert [value.name for value in graph.graph.output] == output_names(LAYERS, with_logits=with_logits)
    assert [_type(value) for value in graph.graph.input] == inputs
    assert [_type(value) for value in graph.graph.output] == outputs


def test_the_operators_are_standard_and_few(tiny_bundle: Path) -> None:
    graph = onnx.load(Bundle.open(tiny_bundle).graph, load_external_data=False)
    assert [(opset.domain, opset.version) for opset in graph.opset_import] == [("", 23)]
    assert not graph.functions
    assert {node.domain for node in graph.graph.node} == {""}
    counts = Counter(node.op_type for node in graph.graph.node)
    assert set(counts) <= ALLOWED
    assert counts["Attention"] == LAYERS
    assert counts["RMSNormalization"] == 2 * LAYERS + 1
    assert counts["RotaryEmbedding"] == 2 * LAYERS
    assert counts["MatMul"] == 7 * LAYERS + 1
    assert counts["Expand"] == 2 * LAYERS + 1
    # Transposes split and join heads; no weight or attention input is transposed twice.
    assert counts["Transpose"] == 4 * LAYERS
    assert counts["Cast"] == counts["Cos"] == counts["Sin"] == 1
    assert counts["Shape"] <= 4
    names = [node.name for node in graph.graph.node]
    assert len(set(names)) == len(names)
    assert "layers.3.mlp.down/MatMul" in names
    assert "layers.0.attention/Attention" in names


def test_the_graph_passes_onnx_s_checker_and_names_no_path(tiny_bundle: Path) -> None:
    path = Bundle.open(tiny_bundle).graph
    onnx.checker.check_model(path, full_check=True)
    text = path.read_bytes()
    assert str(Path.cwd()).encode() not in text
    assert b".py" not in text
