"""ONNX Runtime and onnx accept the serialized graphs, and their products equal numpy's."""

import numpy as np
import onnxruntime as ort
import pytest

from lopa.bench.forward.product_graph import Array, graph_of_product
from lopa.runtime.sessions.exact_int8 import multiply_exactly


def answer(graph: bytes, left: Array) -> Array:
    options = ort.SessionOptions()
    multiply_exactly(options)
    session = ort.InferenceSession(graph, options, providers=["CPUExecutionProvider"])
    (found,) = session.run(None, {"x": left})
    return np.asarray(found)


@pytest.mark.parametrize("sizes", [(1, 1, 1), (3, 5, 7), (130, 200, 129)])
def test_float32(sizes: tuple[int, int, int]) -> None:
    rng = np.random.default_rng(0)
    rows, inputs, outputs = sizes
    left = rng.standard_normal((rows, inputs), np.float32)
    right = rng.standard_normal((inputs, outputs), np.float32)
    found = answer(graph_of_product("MatMul", left.shape, left.dtype, right), left)
    np.testing.assert_allclose(found, left.astype(np.float64) @ right, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("sizes", [(1, 1, 1), (3, 5, 7), (130, 200, 129)])
def test_int8(sizes: tuple[int, int, int]) -> None:
    rng = np.random.default_rng(0)
    rows, inputs, outputs = sizes
    left = rng.integers(256, size=(rows, inputs), dtype=np.uint8)
    right = rng.integers(-128, 128, size=(inputs, outputs), dtype=np.int8)
    found = answer(graph_of_product("MatMulInteger", left.shape, left.dtype, right), left)
    assert found.dtype == np.int32
    np.testing.assert_array_equal(found, left.astype(np.int64) @ right.astype(np.int64))


def test_onnx_accepts_the_graph() -> None:
    onnx = pytest.importorskip("onnx")
    right = np.random.default_rng(0).standard_normal((300, 129), np.float32)
    model = onnx.load_from_string(graph_of_product("MatMul", (130, 300), np.float32, right))
    onnx.checker.check_model(model, full_check=True)
    np.testing.assert_array_equal(onnx.numpy_helper.to_array(model.graph.initializer[0]), right)
