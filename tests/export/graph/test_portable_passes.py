"""Conversion from opset 18 to 17 on tiny graphs, which ONNX Runtime runs before and after."""

import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime
import pytest

from lopa.export.graph.portable_passes import as_portable

REDUCED = """
<ir_version: 10, opset_import: ["": 18]>
g (float[n, 6] x) => (float[n, 1] y, float[n, 3] z) {
  axes = Constant <value_ints = [-1]> ()
  scale = Constant <value = float {0.5}> ()
  halved = Mul (x, scale)
  mean = ReduceMean <keepdims = 1, noop_with_empty_axes = 0> (halved, axes)
  total = ReduceSum <keepdims = 1> (x, axes)
  y = Add (mean, total)
  first, second = Split <axis = -1, num_outputs = 2> (x)
  z = Sub (first, second)
}
"""


def _model(text: str) -> ir.Model:
    return ir.serde.deserialize_model(onnx.parser.parse_model(text))


def _run(model: ir.Model, x: np.ndarray) -> list[np.ndarray]:
    proto = ir.serde.serialize_model(model)
    onnx.checker.check_model(proto, full_check=True)
    return list(
        onnxruntime.InferenceSession(proto.SerializeToString(), providers=["CPUExecutionProvider"]).run(None, {"x": x})
    )


def test_the_same_function_in_opset_17() -> None:
    x = np.random.default_rng(0).standard_normal((4, 6)).astype(np.float32)
    expected = _run(_model(REDUCED), x)
    model = as_portable(_model(REDUCED))
    for found, right in zip(_run(model, x), expected, strict=True):
        np.testing.assert_array_equal(found, right)
    assert (model.opset_imports, model.ir_version) == ({"": 17}, 8)
    assert [node.op_type for node in model.graph] == ["Mul", "ReduceMean", "ReduceSum", "Add", "Split", "Sub"]
    assert {value.name for value in model.graph.initializers.values()} == {"axes", "scale"}


def test_computed_axes_are_rejected() -> None:
    text = REDUCED.replace("float[n, 6] x", "float[n, 6] x, int64[1] axes").replace(
        "  axes = Constant <value_ints = [-1]> ()\n", ""
    )
    with pytest.raises(ir.passes.PassError) as caught:
        as_portable(_model(text))
    assert "needs constant axes of ReduceMean" in str(caught.value.__cause__ or caught.value)
