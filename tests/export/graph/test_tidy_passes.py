"""Each pass on a tiny graph, which ONNX Runtime runs before and after."""

import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime
import pytest

from lopa.export.graph.tidy_passes import (
    ConstantReshapesPass,
    DirectShapesPass,
    StandardOperatorsPass,
    tidy,
)


def _model(text: str) -> ir.Model:
    return ir.serde.deserialize_model(onnx.parser.parse_model(text))


def _run(model: ir.Model, x: np.ndarray) -> list[np.ndarray]:
    data = ir.serde.serialize_model(model).SerializeToString()
    return list(onnxruntime.InferenceSession(data, providers=["CPUExecutionProvider"]).run(None, {"x": x}))


def _operators(model: ir.Model) -> list[str]:
    return [node.op_type for node in model.graph]


BATCHES_TOGETHER = """
<ir_version: 10, opset_import: ["": 23]>
g (float[r, b, w] x) => (float[rb, w] y) {
  r1 = Shape <start = 0, end = 1> (x)
  r0 = Squeeze (r1)
  b1 = Shape <start = 1, end = 2> (x)
  b0 = Squeeze (b1)
  w1 = Shape <start = 2, end = 3> (x)
  w0 = Squeeze (w1)
  rb0 = Mul (r0, b0)
  list = Constant <value_ints = [-1]> ()
  rbl = Reshape (rb0, list)
  wl = Reshape (w0, list)
  target = Concat <axis = 0> (rbl, wl)
  y = Reshape <allowzero = 1> (x, target)
}
"""
TWO_PRODUCTS = BATCHES_TOGETHER.replace(
    "wl = Reshape (w0, list)", "ww = Mul (w0, b0)\n  wl = Reshape (ww, list)"
).replace("float[r, b, w] x", "float[r, b, w, b2] x")


def test_a_product_of_axes_is_inferred() -> None:
    x = np.random.default_rng(0).standard_normal((2, 3, 5)).astype(np.float32)
    before = _run(_model(BATCHES_TOGETHER), x)
    model = tidy(_model(BATCHES_TOGETHER))
    assert "Mul" not in _operators(model)
    np.testing.assert_array_equal(_run(model, x)[0], before[0])
    assert before[0].shape == (6, 5)


def test_two_products_are_unchanged() -> None:
    model = _model(TWO_PRODUCTS)
    DirectShapesPass()(model)
    assert not ConstantReshapesPass()(model).modified
    x = np.random.default_rng(0).standard_normal((2, 3, 5, 3)).astype(np.float32)
    assert _run(tidy(model), x)[0].shape == (6, 15)


def test_other_operators_are_rejected() -> None:
    model = _model(BATCHES_TOGETHER)
    StandardOperatorsPass()(model)
    model.graph.node(0).domain = "com.microsoft"
    with pytest.raises(ir.passes.PostconditionError, match=r"com\.microsoft::Shape"):
        StandardOperatorsPass()(model)
