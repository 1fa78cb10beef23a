"""ONNX models of one node, which TensorRT accepts or rejects."""

from collections.abc import Sequence

import numpy as np
import onnx
import onnx.helper
import onnx.numpy_helper

F32, F16, BF16, I64 = (
    onnx.TensorProto.FLOAT,
    onnx.TensorProto.FLOAT16,
    onnx.TensorProto.BFLOAT16,
    onnx.TensorProto.INT64,
)
Shape = Sequence[int | str]


def model_of_node(
    operator: str,
    inputs: dict[str, tuple[int, Shape]],
    constants: dict[str, np.ndarray] | None = None,
    *,
    outputs: tuple[str, ...] = ("y",),
    opset: int = 23,
    domain: str = "",
    **attributes: object,
) -> onnx.ModelProto:
    """Return a model of one node, over inputs and then constants, in this order."""
    known = constants or {}
    node = onnx.helper.make_node(operator, [*inputs, *known], list(outputs), name="node", domain=domain, **attributes)
    graph = onnx.helper.make_graph(
        [node],
        "g",
        [onnx.helper.make_tensor_value_info(name, *kind) for name, kind in inputs.items()],
        [onnx.helper.make_empty_tensor_value_info(name) for name in outputs],
        [onnx.numpy_helper.from_array(array, name) for name, array in known.items()],
    )
    imports = [onnx.helper.make_opsetid("", opset), *([onnx.helper.make_opsetid(domain, 1)] if domain else [])]
    return onnx.helper.make_model(graph, opset_imports=imports)


def attention_model(
    *, dtype: int = F16, sizes: Shape = (2, 3, 4, 8), mask: tuple[int, Shape] | None = None, **changes: object
) -> onnx.ModelProto:
    """Return a model of one Attention over q, k and v of `sizes`, with 3 or 4 axes, decomposable by default."""
    inputs = dict.fromkeys("qkv", (dtype, sizes)) | ({} if mask is None else {"m": mask})
    return model_of_node("Attention", inputs, **{"TRT_decomposable": 1} | changes)  # type: ignore[arg-type]
