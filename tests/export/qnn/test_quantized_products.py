"""The forms of quantized products that QNN keeps on the NPU, run by ONNX Runtime's CPU provider."""

import numpy as np
import numpy.typing as npt
import onnx_ir as ir
import onnxruntime as ort
import pytest
import torch

from lopa.export.graph.quantize_pass import QuantizedMatricesPass, QuantizedMatrix
from lopa.export.qnn.quantized_products import Int16RowsPass
from lopa.runtime.bundle.buckets import bucket_from_sizes
from lopa.runtime.contract.sizes import Sizes

Array = npt.NDArray[np.float32]
RNG = np.random.default_rng(7)
BUCKET = bucket_from_sizes(Sizes(1, 2, 64, 64, 64), 1.0)
INPUTS, OUTPUTS = 512, 40
STEP = 1.01 / 32767


def _product(integers: npt.NDArray[np.int8], scales: Array, *passes: ir.passes.InPlacePass) -> ort.InferenceSession:
    """Open y0 = y1 = x @ (integers * scales) on the CPU after the int8 pass and `passes`."""
    inputs, outputs = integers.shape
    x = ir.Value(name="x", shape=ir.Shape(["rows", inputs]), type=ir.TensorType(ir.DataType.FLOAT))
    matrix = ir.Value(name="w", shape=ir.Shape(integers.shape), type=ir.TensorType(ir.DataType.FLOAT))
    nodes = [ir.node("MatMul", [x, matrix], name=f"product{number}") for number in range(2)]
    for number, node in enumerate(nodes):
        result = node.outputs[0]
        result.name, result.type, result.shape = (
            f"y{number}",
            ir.TensorType(ir.DataType.FLOAT),
            ir.Shape(["rows", outputs]),
        )
    graph = ir.Graph(
        [x], [node.outputs[0] for node in nodes], nodes=nodes, initializers=[matrix], opset_imports={"": 23}
    )
    quantized = QuantizedMatrix(ir.tensor(integers, name="w"), ir.tensor(scales, name="w_scale"))
    model = ir.passes.Sequential(QuantizedMatricesPass({"w": quantized}), *passes)(ir.Model(graph, ir_version=11)).model
    options = ort.SessionOptions()
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    return ort.InferenceSession(ir.to_proto(model).SerializeToString(), options, providers=["CPUExecutionProvider"])


def _exact(x: Array, integers: npt.NDArray[np.int8], scales: Array) -> npt.NDArray[np.float64]:
    matrix = torch.from_numpy(integers).double() * torch.from_numpy(scales).double()
    return (torch.from_numpy(x).double() @ matrix).numpy()


@pytest.fixture
def integers() -> npt.NDArray[np.int8]:
    return RNG.integers(-127, 128, (INPUTS, OUTPUTS), np.int8)


@pytest.fixture
def scales() -> Array:
    return RNG.uniform(1e-4, 1e-2, OUTPUTS).astype(np.float32)


def test_rows_and_results_are_rounded_to_16_bits(integers: npt.NDArray[np.int8], scales: Array) -> None:
    """Rows of all magnitudes, with numbers a thousand times the others, stay within half a step of both roundings."""
    x = (RNG.standard_normal((9, INPUTS)) * np.logspace(-1, 4, 9)[:, None]).astype(np.float32)
    x[::2, 5] *= 1000
    exact = _exact(x, integers, scales)
    lengths = np.linalg.norm(x, axis=1, keepdims=True)
    longest = np.linalg.norm(integers.astype(np.float64) * scales, axis=0).max()
    allowed = lengths * STEP / 2 * (longest + np.abs(integers * scales).sum(axis=0))
    eight_bits = np.abs(_product(integers, scales).run(None, {"x": x})[0] - exact)
    for found in _product(integers, scales, Int16RowsPass()).run(None, {"x": x}):
        error = np.abs(found - exact)
        assert (error <= 1.01 * allowed).all()
        assert error.mean() < eight_bits.mean() / 20


def test_no_row_exceeds_the_range(integers: npt.NDArray[np.int8], scales: Array) -> None:
    """A row in the direction of the longest column gives the largest result that a row can give."""
    matrix = integers * scales
    longest = int(np.linalg.norm(matrix, axis=0).argmax())
    x = np.stack([matrix[:, longest], -matrix[:, longest]])
    found = _product(integers, scales, Int16RowsPass()).run(None, {"x": x})[0]
    np.testing.assert_allclose(found[:, longest], _exact(x, integers, scales)[:, longest], rtol=1e-4)


def test_rows_and_matrices_of_zeros_give_zeros(integers: npt.NDArray[np.int8], scales: Array) -> None:
    x = np.zeros((2, INPUTS), np.float32)
    x[1, 3] = 1e-6  # below the least magnitude: the step is larger, but nothing is divided by zero
    found = _product(integers, scales, Int16RowsPass()).run(None, {"x": x})[0]
    assert (found[0] == 0).all()
    assert np.abs(found[1]).max() < 1e-4
    nothing = _product(np.zeros_like(integers), scales, Int16RowsPass()).run(None, {"x": x + 1})[0]
    assert (nothing == 0).all()
