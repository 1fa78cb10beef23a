"""Graphs of one expert layer with random weights in a file, and the layer's result in float64."""

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx_ir as ir
import onnxruntime
import torch

from lopa.export.graph.experts import EXPERTS_OPERATOR, TRACED_DOMAIN
from lopa.export.weights.plan import Dtype, QuantizedKind
from lopa.export.weights.quantize_tensor import bytes_from_int4, float32_from_fp8, integers_from_values
from lopa.runtime.bundle.weights import values_from_integers
from lopa.runtime.sessions.providers import multiply_exactly

FILE = "weights.data"
PREFIX = "layers.3.mlp.experts"
STORED = {"int8": ir.DataType.INT8, "int4": ir.DataType.INT4, "fp8": ir.DataType.FLOAT8E4M3FN}


@dataclass(frozen=True)
class Sizes:
    """Sizes of the layer and kind of its matrices."""

    experts: int = 6
    per_token: int = 2
    hidden: int = 64
    inner: int = 32
    dtype: Dtype = "float32"
    """Type of the rows, and of matrices that are not quantized."""
    quantized: QuantizedKind | None = None


@dataclass(frozen=True, eq=False)
class WeightsOfLayer:
    """A layer's matrices in a file, and what they stand for."""

    sizes: Sizes
    folder: Path
    tensors: list[ir.ExternalTensor]
    """Values, each followed by its scales if it is quantized."""
    values: list[np.ndarray]
    """gate, up and down in float64 [E, inputs, outputs]."""


def random_weights(sizes: Sizes, folder: Path) -> WeightsOfLayer:
    """Write random matrices to the file FILE in `folder`."""
    generator = torch.Generator().manual_seed(sizes.experts)
    content, tensors, values = bytearray(b"\0" * 64), [], []

    def stored(name: str, data: bytes, dtype: ir.DataType, shape: tuple[int, ...]) -> None:
        tensors.append(
            ir.ExternalTensor(FILE, len(content), len(data), dtype, shape=ir.Shape(shape), name=name, base_dir=folder)
        )
        content.extend(data)

    for name, inputs, outputs in (
        ("gate", sizes.hidden, sizes.inner),
        ("up", sizes.hidden, sizes.inner),
        ("down", sizes.inner, sizes.hidden),
    ):
        shape = (sizes.experts, inputs, outputs)
        exact = torch.randn(shape, generator=generator) * inputs**-0.5
        key = f"{PREFIX}.{name}.weight"
        if not sizes.quantized:
            array = exact.numpy().astype(sizes.dtype)
            stored(key, array.tobytes(), ir.DataType.from_numpy(array.dtype), shape)
            values.append(array.astype(np.float64))
            continue
        kind = sizes.quantized
        pairs = [integers_from_values(kind, each, sizes.dtype) for each in exact]
        integers = torch.stack([pair[0] for pair in pairs])
        scales = torch.stack([pair[1] for pair in pairs]).numpy()
        if kind == "fp8":
            packed, shape = integers.swapaxes(1, 2), (sizes.experts, outputs, inputs)
            integers = float32_from_fp8(integers)
        else:
            packed = bytes_from_int4(integers) if kind == "int4" else integers
        stored(key, packed.numpy().tobytes(), STORED[kind], shape)
        stored(f"{key}_scale", scales.tobytes(), ir.DataType.from_numpy(scales.dtype), scales.shape)
        values.append(
            np.stack(
                [
                    values_from_integers(of_one.numpy(), scale.astype(np.float32))
                    for of_one, scale in zip(integers, scales, strict=True)
                ]
            ).astype(np.float64)
        )
    (folder / FILE).write_bytes(content)
    return WeightsOfLayer(sizes, folder, tensors, values)


def model_of_layer(weights: WeightsOfLayer, opset: int = 23) -> ir.Model:
    """Return a graph of the layer as it is traced."""
    sizes = weights.sizes
    dtype = ir.DataType.from_numpy(np.dtype(sizes.dtype))
    rows = _value("rows", dtype, sizes.hidden)
    ids, factors = (
        _value("ids", ir.DataType.INT64, sizes.per_token),
        _value("weights", ir.DataType.FLOAT, sizes.per_token),
    )
    matrices = [
        ir.Value(name=each.name, shape=each.shape, type=ir.TensorType(each.dtype), const_value=each)
        for each in weights.tensors
    ]
    node = ir.node(
        EXPERTS_OPERATOR, [rows, ids, factors, *matrices], domain=TRACED_DOMAIN, name=f"{PREFIX}/{EXPERTS_OPERATOR}"
    )
    result = node.outputs[0]
    result.name, result.type, result.shape = "result", rows.type, rows.shape
    graph = ir.Graph(
        [rows, ids, factors],
        [result],
        nodes=[node],
        initializers=matrices,
        opset_imports={"": opset, TRACED_DOMAIN: 1},
        name="layer",
    )
    return ir.Model(graph, ir_version=11 if opset > 17 else 8)


def _value(name: str, dtype: ir.DataType, size: int) -> ir.Value:
    return ir.Value(name=name, shape=ir.Shape(["n", "w", size]), type=ir.TensorType(dtype))


def random_inputs(sizes: Sizes, shape: tuple[int, int], **changes: Any) -> dict[str, np.ndarray]:
    """Return rows, ids of different experts for each row, and weights. `changes` replaces some of them."""
    generator = np.random.default_rng(sizes.experts)
    scores = generator.random((*shape, sizes.experts))
    inputs = {
        "rows": generator.standard_normal((*shape, sizes.hidden)).astype(sizes.dtype),
        "ids": np.argsort(scores, axis=-1)[..., : sizes.per_token],
        "weights": generator.random((*shape, sizes.per_token)).astype(np.float32),
    }
    return inputs | changes


def expected_result(weights: WeightsOfLayer, inputs: dict[str, np.ndarray]) -> np.ndarray:
    """Return the layer's result in float64. Rows of int8 and FP8 products are rounded."""
    gate, up, down = weights.values
    rounded = {"int8": _rounded, "fp8": _rounded_to_fp8}.get(weights.sizes.quantized or "", _unchanged)
    result = np.zeros(inputs["rows"].shape)
    for place in np.ndindex(*inputs["ids"].shape):
        expert, row = inputs["ids"][place], rounded(inputs["rows"][place[:2]].astype(np.float64))
        gated = row @ gate[expert]
        inner = gated / (1 + np.exp(-gated)) * (row @ up[expert])
        result[place[:2]] += inputs["weights"][place] * (rounded(inner) @ down[expert])
    return result


def _rounded(row: np.ndarray) -> np.ndarray:
    scale = max(np.abs(row).max(), 1e-30) / 127
    rounded: np.ndarray = np.rint(row / scale) * scale
    return rounded


def _rounded_to_fp8(row: np.ndarray) -> np.ndarray:
    scale = max(np.abs(row).max(), 1e-30) / 448
    rounded: np.ndarray = torch.from_numpy(row / scale).to(torch.float8_e4m3fn).double().numpy() * scale
    return rounded


def _unchanged(row: np.ndarray) -> np.ndarray:
    return row


def run(
    model: ir.Model, weights: WeightsOfLayer, inputs: dict[str, np.ndarray], *, optimize: bool = True
) -> np.ndarray:
    """Return the result of ONNX Runtime, whose 4-bit products use float32 rows."""
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    options.log_severity_level = 3
    multiply_exactly(options)
    if weights.sizes.quantized == "fp8":
        options.add_session_config_entry("session.disable_quant_qdq", "1")
    options.add_session_config_entry("session.qdq_matmulnbits_accuracy_level", "0")
    if not optimize:
        options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    path = saved(model, weights)
    (result,) = onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"]).run(None, inputs)
    return np.asarray(result)


def saved(model: ir.Model, weights: WeightsOfLayer) -> Path:
    """Write the graph beside its weights, and return its path."""
    path = weights.folder / "layer.onnx"
    ir.save(model, path)
    return path


def quantized(kind: QuantizedKind | None) -> Sizes:
    """Return sizes of a layer with quantized matrices."""
    return replace(Sizes(), quantized=kind)
