"""The graph for TensorRT's parser: what differs from the bundle's, and that results do not."""

import shutil
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import onnx
import onnx.parser
import onnxruntime as ort
import pytest
from tests.export.graph_runs import statistics_of
from tests.runtime.random_windows import random_batch

from lopa.export.tensorrt.parser_graph import model_for_parser
from lopa.runtime.bundle import Bundle


def test_attention_in_functions_is_marked_too(tiny_bundle: Path, tmp_path: Path) -> None:
    """Use a function as earlier versions wrote it with --plugins."""
    model = onnx.load(tiny_bundle / "model.onnx", load_external_data=False)
    text = '<opset_import: ["" : 23], domain: "lopa"> BranchAttention (q, k, v) => (y) { y = Attention (q, k, v) }'
    model.functions.append(onnx.parser.parse_function(text))
    onnx.save(model, tmp_path / "model.onnx")
    model = model_for_parser(SimpleNamespace(graph=tmp_path / "model.onnx"))  # type: ignore[arg-type]
    inside = [node for function in model.functions for node in function.node if node.op_type == "Attention"]
    assert inside
    assert all(any(each.name == "TRT_decomposable" for each in node.attribute) for node in inside)


def test_only_attention_and_zero_points_are_changed_and_the_file_is_not(tiny_quantized: Path) -> None:
    bundle = Bundle.open(tiny_quantized)
    before = bundle.graph.read_bytes()
    changed, plain = model_for_parser(bundle), onnx.load(bundle.graph, load_external_data=False)
    assert bundle.graph.read_bytes() == before
    for node in changed.graph.node:
        decomposable = [each for each in node.attribute if each.name == "TRT_decomposable"]
        assert [each.i for each in decomposable] == ([1] if node.op_type == "Attention" else [])
        for each in decomposable:
            node.attribute.remove(each)
    assert list(changed.graph.node) == list(plain.graph.node)
    different = [
        new.name
        for new, old in zip(changed.graph.initializer, plain.graph.initializer, strict=True)
        if new.SerializeToString() != old.SerializeToString()
    ]
    assert different in ([], ["quantize.zero"])


@pytest.mark.parametrize("tiny_quantized", ["fp8"], indirect=True)
def test_fp8_matrices_have_no_scales_of_their_own(tiny_quantized: Path, tmp_path: Path) -> None:
    """TensorRT has one scale for such a matrix. Scales after the products change their last bits only."""
    bundle = Bundle.open(tiny_quantized)
    model = model_for_parser(bundle)
    scales = {node.input[1] for node in model.graph.node if node.op_type == "DequantizeLinear"}
    assert scales == {"quantize.one"}
    for node in (node for node in model.graph.node if node.op_type == "Attention"):
        node.attribute.pop()  # TRT_decomposable
    other = shutil.copytree(bundle.path, tmp_path / "other")
    onnx.save(model, other / bundle.graph.name)
    batch = random_batch(np.random.default_rng(1), [0], 1, 3, 3)
    found, expected = (statistics_of(Bundle(path, bundle.manifest), "cpu", batch) for path in (other, bundle.path))
    np.testing.assert_allclose(found.topk_logprobs, expected.topk_logprobs, rtol=1e-4, atol=1e-4)


def test_signed_rows_are_the_same_numbers() -> None:
    """Check that uint8 around 128 and int8 around 0 round and saturate alike, also for rows out of range."""
    x = np.random.default_rng(3).normal(0, 80, (16, 24)).astype(np.float32)
    results = []
    for zero in (np.uint8(128), np.int8(0)):
        nodes = [
            onnx.helper.make_node("QuantizeLinear", ["x", "one", "zero"], ["q"]),
            onnx.helper.make_node("DequantizeLinear", ["q", "one", "zero"], ["y"]),
        ]
        graph = onnx.helper.make_graph(
            nodes,
            "g",
            [onnx.helper.make_tensor_value_info("x", onnx.TensorProto.FLOAT, [16, 24])],
            [onnx.helper.make_tensor_value_info("y", onnx.TensorProto.FLOAT, [16, 24])],
            [
                onnx.numpy_helper.from_array(np.array(1, np.float32), "one"),
                onnx.numpy_helper.from_array(np.array(zero), "zero"),
            ],
        )
        model = onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 23)], ir_version=10)
        session = ort.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
        results.append(session.run(["y"], {"x": x})[0])
    assert (np.abs(x) > 130).any()
    np.testing.assert_array_equal(results[0], results[1])
