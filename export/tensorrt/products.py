"""Products with weights in 8 bits, as Q/DQ nodes for TensorRT. The bundle's weights stay floats.

MatMul(x, W) becomes MatMul(DQ(Q(x / rows)), DQ(Q(W))) * rows in float32. `rows` is the largest magnitude of each row
of x over the largest 8-bit number, worked out from the row itself, so that Q has the constant scale 1 that TensorRT
wants and nothing needs to be calibrated; it is what int8 bundles compute (quantize_graph). W's scales, for each column
in int8 and one in fp8, are worked out here; TensorRT quantizes W by them when it builds.

Knows ONNX and numbers, no TensorRT.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Literal

import numpy as np
import numpy.typing as npt
import onnx
import onnx.helper
import onnx.numpy_helper

from lopa.runtime.bundle.manifest import TensorRecord
from lopa.runtime.contract import Float32
from lopa.runtime.contract.stored_floats import stored_dtype, stored_from_float32

Products = Literal["int8", "fp8"]

_LEAST_MAGNITUDE = 1e-30
"""Stands for the largest magnitude of a row or column of zeros."""
_LEAST_FLOAT16 = 2.0**-14
"""Smaller numbers lose digits in float16."""
_CHUNK_ROWS = 1024
"""Of a weight, widened to float32 at a time."""
_ONNX_TYPES = {
    "float32": onnx.TensorProto.FLOAT,
    "float16": onnx.TensorProto.FLOAT16,
    "bfloat16": onnx.TensorProto.BFLOAT16,
}


@dataclass(frozen=True)
class _Kind:
    """A type of 8 bits."""

    onnx_type: int
    greatest: float
    a_scale_for_each_column: bool


_KINDS: dict[Products, _Kind] = {
    "int8": _Kind(onnx.TensorProto.INT8, 127.0, a_scale_for_each_column=True),
    "fp8": _Kind(onnx.TensorProto.FLOAT8E4M3FN, 448.0, a_scale_for_each_column=False),
}


def quantize_products(
    model: onnx.ModelProto,
    products: Products,
    records: Mapping[str, TensorRecord],
    magnitudes: Callable[[str], Float32],
) -> None:
    """Rewrite, in place, every product with a matrix of `records`, which are floats.

    `magnitudes` gives the largest magnitude of each column of a weight, float32 [outputs] (magnitudes_of_columns).
    """
    writer = _Writer(model, _KINDS[products])
    for node in list(model.graph.node):
        if node.op_type == "MatMul" and node.input[1] in records:
            writer.product(node, records[node.input[1]].dtype, magnitudes(node.input[1]))
        else:
            writer.nodes.append(node)
    del model.graph.node[:]
    model.graph.node.extend(writer.nodes)


def magnitudes_of_columns(stored: npt.NDArray[np.generic], widened: Callable[..., Float32]) -> Float32:
    """float32 [outputs] of stored numbers [inputs, outputs]; `widened` makes float32 of some rows at a time."""
    largest = np.zeros(stored.shape[1], np.float32)
    for first in range(0, len(stored), _CHUNK_ROWS):
        np.maximum(largest, np.abs(widened(stored[first : first + _CHUNK_ROWS])).max(axis=0), out=largest)
    return largest


class _Writer:
    """Collects the nodes of the new graph; constants and rounded rows are made once."""

    def __init__(self, model: onnx.ModelProto, kind: _Kind) -> None:
        self.nodes: list[onnx.NodeProto] = []
        self._graph = model.graph
        self._kind = kind
        self._rows: dict[str, tuple[str, str]] = {}
        self._constants = {
            name: self._constant(f"products.{name}", np.array(value, np.float32))
            for name, value in (("one", 1.0), ("least", _LEAST_MAGNITUDE), ("step", 1.0 / kind.greatest))
        }
        self._constants["last_axis"] = self._constant("products.last_axis", np.array([-1], np.int64))
        self._zero = self._raw_constant("products.zero", kind.onnx_type, (), b"\0")

    def product(self, node: onnx.NodeProto, dtype: str, magnitudes: Float32) -> None:
        """The nodes in the place of `node`, whose output keeps its name and type."""
        name = node.name or node.output[0]
        rows, scales = self._rounded_rows(node.input[0])
        weight = self._rounded_weight(node.input[1], dtype, magnitudes)
        of_eight_bits = self._add("MatMul", [rows, weight], f"{name}/eight_bits")
        if dtype == "float32":
            self._add("Mul", [of_eight_bits, scales], name, output=node.output[0])
        else:
            scaled = self._add("Mul", [of_eight_bits, scales], f"{name}/scaled")
            self._add("Cast", [scaled], name, output=node.output[0], to=_ONNX_TYPES[dtype])

    def _rounded_rows(self, x: str) -> tuple[str, str]:
        """Rows of 8-bit numbers as float32, and their scales [.., rows, 1]."""
        if x not in self._rows:
            name = f"{x}/eight_bits"
            wide = self._add("Cast", [x], f"{name}/Cast", to=onnx.TensorProto.FLOAT)
            largest = self._add(
                "ReduceMax",
                [self._add("Abs", [wide], f"{name}/Abs"), self._constants["last_axis"]],
                f"{name}/ReduceMax",
                keepdims=1,
            )
            not_zero = self._add("Max", [largest, self._constants["least"]], f"{name}/Max")
            scales = self._add("Mul", [not_zero, self._constants["step"]], f"{name}/scales")
            divided = self._add("Div", [wide, scales], f"{name}/Div")
            one = self._constants["one"]
            integers = self._add("QuantizeLinear", [divided, one, self._zero], f"{name}/QuantizeLinear")
            rows = self._add("DequantizeLinear", [integers, one, self._zero], f"{name}/DequantizeLinear")
            self._rows[x] = (rows, scales)
        return self._rows[x]

    def _rounded_weight(self, weight: str, dtype: str, magnitudes: Float32) -> str:
        """The weight in 8 bits, as float32.

        Q takes a scale of the weight's own type and DQ the same numbers in float32, which make its output float32.
        """
        columns = self._kind.a_scale_for_each_column
        largest = np.maximum(magnitudes if columns else magnitudes.max(), np.float32(_LEAST_MAGNITUDE))
        exact: Float32 = np.asarray(largest / np.float32(self._kind.greatest), np.float32)
        if dtype == "float16":
            exact = np.maximum(exact, np.float32(_LEAST_FLOAT16))
        stored = stored_from_float32(exact, stored_dtype(dtype))
        scale = self._raw_constant(f"{weight}/scale", _ONNX_TYPES[dtype], exact.shape, stored.tobytes())
        widened = onnx.numpy_helper.to_array(self._graph.initializer[-1]).astype(np.float32)
        wide_scale = self._constant(f"{weight}/scale_float32", widened)
        zero = self._zero
        if columns:
            zero = self._raw_constant(f"{weight}/zero", self._kind.onnx_type, exact.shape, bytes(exact.size))
        quantized = self._add("QuantizeLinear", [weight, scale, zero], f"{weight}/QuantizeLinear", axis=1)
        return self._add("DequantizeLinear", [quantized, wide_scale, zero], f"{weight}/DequantizeLinear", axis=1)

    def _add(self, operator: str, inputs: list[str], name: str, *, output: str | None = None, **attributes: int) -> str:
        made = output or f"{name}_output"
        self.nodes.append(onnx.helper.make_node(operator, inputs, [made], name=name, **attributes))
        return made

    def _constant(self, name: str, array: npt.NDArray[np.generic]) -> str:
        self._graph.initializer.append(onnx.numpy_helper.from_array(array, name))
        return name

    def _raw_constant(self, name: str, onnx_type: int, shape: tuple[int, ...], raw: bytes) -> str:
        self._graph.initializer.append(onnx.helper.make_tensor(name, onnx_type, shape, raw, raw=True))
        return name
