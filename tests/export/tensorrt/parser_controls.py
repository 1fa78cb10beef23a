"""Small graphs with the results of our check and of a real parser and builder.

The real ones belong to TensorRT for RTX 1.7.1. Where our check rejects graphs that they accept, `why` has the
reason. TensorRT 10.15 to 11 also build engines. Only their documentation was available, not their parsers.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import numpy as np
import onnx
from tests.export.tensorrt.one_node import BF16, F16, F32, I64, attention_model, model_of_node

BOOL, DOUBLE, INT8, INT16, INT32, UINT8, FP8 = (
    onnx.TensorProto.BOOL,
    onnx.TensorProto.DOUBLE,
    onnx.TensorProto.INT8,
    onnx.TensorProto.INT16,
    onnx.TensorProto.INT32,
    onnx.TensorProto.UINT8,
    onnx.TensorProto.FLOAT8E4M3FN,
)
Verdict = Literal["built", "parser rejects", "builder rejects"]


@dataclass(frozen=True)
class Control:
    """One model with its expected results."""

    make: Callable[[], onnx.ModelProto]
    rule: str | None
    """Rule of our check that rejects it; None if our check accepts it."""
    ours: str
    """Part of our message."""
    real: Verdict
    said: str = ""
    """Part of the real parser's or builder's message."""
    why: str = ""
    """Reason why our check rejects a model that the real one builds."""


def _top_k(count: int, **changes: object) -> onnx.ModelProto:
    constants = {"k": np.int64([count])}
    return model_of_node("TopK", {"x": (F32, [2, 5000])}, constants, outputs=("y", "i"), **changes)  # type: ignore[arg-type]


def _rounded(zero: np.generic | None, scale: float = 1) -> onnx.ModelProto:
    """Return a QuantizeLinear with a scale and a zero point."""
    constants = {"scale": np.float32(scale)} | ({} if zero is None else {"zero": zero})
    return model_of_node("QuantizeLinear", {"x": (F32, [2, 8])}, constants)


_DOCUMENTED = "required by the documents of 10.15"
_CONSTANT_SCALE = "NVIDIA's documents of Quantize and Dequantize, also of 11, require a constant scale"

CONTROLS: dict[str, Control] = {
    "opset": Control(
        lambda: model_of_node("Relu", {"x": (F32, [2])}, opset=8), "opset", "opset 8", "built", why=_DOCUMENTED
    ),
    "newer opset": Control(
        lambda: model_of_node("Relu", {"x": (F32, [2])}, opset=25),
        "opset",
        "opset 25",
        "built",
        why="10.15 supports opsets up to 24",
    ),
    "operator": Control(
        lambda: model_of_node("MatMulInteger", {"a": (INT8, [2, 2]), "b": (INT8, [2, 2])}),
        "operator",
        "ai.onnx::MatMulInteger is not supported; export the checkpoint in floating point",
        "parser rejects",
        "MatMulInteger",
    ),
    "domain": Control(
        lambda: model_of_node("FusedThing", {"x": (F32, [2])}, domain="com.microsoft"),
        "operator",
        "com.microsoft::FusedThing",
        "parser rejects",
        "Plugin not found",
    ),
    "type": Control(
        lambda: model_of_node("Sin", {"x": (DOUBLE, [2])}),
        "type",
        "x is DOUBLE, expected one of FLOAT FLOAT16 BFLOAT16; put a Cast",
        "built",
        why="it computes DOUBLE values in FLOAT",
    ),
    "type of a logical operator": Control(
        lambda: model_of_node("Where", {"c": (BOOL, [2]), "a": (INT8, [2])}, {"b": np.int8([1])}),
        "type",
        "a is INT8",
        "builder rejects",
        "Quantized constant (b) is only allowed before DQ",
    ),
    "output type": Control(
        lambda: model_of_node("Cast", {"x": (F32, [2])}, to=INT16),
        "output type",
        "y is converted to INT16, expected one of FLOAT FLOAT16",
        "parser rejects",
        "Unsupported data type for the Cast operator",
    ),
    "rounded to uint8 by a zero point": Control(
        lambda: _rounded(np.uint8(0)),
        "output type",
        "y is converted to UINT8",
        "built",
        why="it reads uint8 as int8 there, which are different numbers above 127",
    ),
    "types of a sum": Control(
        lambda: model_of_node("Add", {"a": (F32, [2]), "b": (F16, [2])}),
        "operand types",
        "b is FLOAT16, another operand FLOAT; put a Cast",
        "parser rejects",
        "must have same input types",
    ),
    "types of a variadic operator": Control(
        lambda: model_of_node("Concat", {"a": (F32, [2]), "b": (F32, [2]), "c": (BF16, [2])}, axis=0),
        "operand types",
        "c is BFLOAT16, another operand FLOAT",
        "parser rejects",
        "must all be of the same type",
    ),
    "types of an attention": Control(
        lambda: model_of_node(
            "Attention",
            {"q": (F16, [2, 3, 4, 8]), "k": (F16, [2, 3, 4, 8]), "v": (F32, [2, 3, 4, 8])},
            TRT_decomposable=1,
        ),
        "operand types",
        "v is FLOAT, another operand FLOAT16",
        "builder rejects",
        "shape inference",
    ),
    "axes": Control(
        lambda: model_of_node("Relu", {"x": (F32, [1] * 9)}),
        "axes",
        "x has 9 axes, more than 8",
        "parser rejects",
        "Failed to convert ONNX dimensions",
    ),
    "attention with present": Control(
        lambda: attention_model(outputs=("y", "k2", "v2")),
        "attention",
        "uses k2, v2",
        "parser rejects",
        "only supports Attention nodes with one output",
    ),
    "attention with softcap": Control(
        lambda: attention_model(softcap=2.0),
        "attention",
        "attribute softcap",
        "parser rejects",
        "Setting softcap is not supported",
    ),
    "attention that must be fused": Control(
        lambda: attention_model(dtype=F32, sizes=(2, 4, 32, 64), TRT_decomposable=0),
        "attention",
        "is not marked TRT_decomposable",
        "builder rejects",
        "is_decomposable()",
    ),
    "mask of 2 axes": Control(
        lambda: attention_model(mask=(BOOL, [4, 4])),
        "attention",
        "m has 2 axes, expected 4",
        "built",
        why=_DOCUMENTED,
    ),
    "mask of another float": Control(
        lambda: attention_model(mask=(F32, [2, 1, 4, 4])),
        "attention",
        "m is FLOAT, the query FLOAT16; use BOOL",
        "builder rejects",
        "element type (half) differs from",
    ),
    "two masks": Control(
        lambda: attention_model(mask=(BOOL, [2, 1, 4, 4]), is_causal=1),
        "attention",
        "has m and is_causal",
        "parser rejects",
        "IAttention::setMask",
    ),
    "computed axes": Control(
        lambda: model_of_node("ReduceSum", {"x": (F32, [2, 2]), "axes": (I64, [1])}),
        "constant operand",
        "its axes axes are computed",
        "parser rejects",
        "must resolve to a build-time constant",
    ),
    "squeeze of a dynamic shape": Control(
        lambda: model_of_node("Squeeze", {"x": (F32, [1, "n"])}),
        "constant operand",
        "has no axes, and its shape is dynamic",
        "built",
        why="required by the source of 10.15's parser",
    ),
    "computed scale": Control(
        lambda: model_of_node("QuantizeLinear", {"x": (F32, [2]), "scale": (F32, [])}, {"zero": np.int8(0)}),
        "constant operand",
        "its scale scale is computed; export the checkpoint in floating point",
        "built",
        why=_CONSTANT_SCALE,
    ),
    "scale of 0": Control(
        lambda: _rounded(None, 0), "positive scale", "scale is not above 0", "parser rejects", "must all be positive"
    ),
    "zero point": Control(
        lambda: _rounded(np.int8(3)), "zero point", "zero is not 0", "parser rejects", "Non-zero zero point"
    ),
    "computed zero point": Control(
        lambda: model_of_node("DequantizeLinear", {"x": (INT8, [8]), "s": (F32, []), "zero": (INT8, [])}),
        "zero point",
        "zero is not 0",
        "builder rejects",
        "`zero_point` which is not an initializer",
    ),
    "most candidates": Control(lambda: _top_k(3840), None, "", "built"),
    "one candidate more": Control(
        lambda: _top_k(3841), "top k", "K is 3841", "builder rejects", "exceeds the maximum value allowed (3840)"
    ),
    "unsorted candidates": Control(lambda: _top_k(4, sorted=0), "top k", "sorted 0", "built", why=_DOCUMENTED),
    "rotary positions": Control(
        lambda: model_of_node(
            "RotaryEmbedding", {"x": (F32, [1, 2, 4, 8]), "c": (F32, [9, 4]), "s": (F32, [9, 4]), "p": (INT32, [1, 4])}
        ),
        "rotary positions",
        "position_ids is not INT64",
        "built",
        why="ONNX itself requires INT64",
    ),
    "oldest opset": Control(lambda: model_of_node("Relu", {"x": (BF16, [2, "n"])}, opset=14), None, "", "built"),
    "newest opset of 10.15": Control(
        lambda: model_of_node("Relu", {"x": (F32, [2, "n"])}, opset=24), None, "", "built"
    ),
    "8 axes": Control(lambda: model_of_node("Relu", {"x": (F32, [1] * 8)}), None, "", "built"),
    "squeeze of a fixed shape": Control(lambda: model_of_node("Squeeze", {"x": (F32, [1, 1])}), None, "", "built"),
    "rounded to int8": Control(lambda: _rounded(np.int8(0)), None, "", "built"),
    "16 bits rounded by a scale of 32": Control(
        lambda: model_of_node("QuantizeLinear", {"x": (BF16, [2])}, {"s": np.float32(1), "z": np.int8(0)}),
        None,
        "",
        "built",
    ),
    "scale of a norm of another type": Control(
        lambda: model_of_node("RMSNormalization", {"x": (F16, [2, 4]), "s": (F32, [4])}), None, "", "built"
    ),
    "causal attention": Control(lambda: attention_model(is_causal=1), None, "", "built"),
    "attention": Control(attention_model, None, "", "built"),
}
