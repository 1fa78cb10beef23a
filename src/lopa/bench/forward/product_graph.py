"""ONNX graphs of a single matrix product, as bytes, to measure a machine's rates."""

from typing import Any

import numpy as np
import numpy.typing as npt

from lopa.runtime.graph_encoding import encoded_model, encoded_node, encoded_tensor, encoded_value

Array = npt.NDArray[Any]


def graph_of_product(operator: str, left: tuple[int, int], left_type: npt.DTypeLike, right: Array) -> bytes:
    """Return a graph of y = operator(x, `right`).

    The input x has shape `left` and type `left_type`. `right` is a constant that engines may pack. `operator` is MatMul
    (float32) or MatMulInteger (uint8 times int8 to int32).
    """
    result = np.float32 if operator == "MatMul" else np.int32
    return encoded_model(
        nodes=[encoded_node(operator, ("x", "right"), "y")],
        inputs=[encoded_value("x", left_type, left)],
        outputs=[encoded_value("y", result, (left[0], right.shape[1]))],
        initializers=[encoded_tensor("right", right)],
    )
