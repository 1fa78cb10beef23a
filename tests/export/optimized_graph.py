"""Graphs after ONNX Runtime's optimizations."""

from collections import Counter
from pathlib import Path

import onnx
import onnxruntime


def operators_when_optimized(graph: Path, folder: Path) -> Counter[str]:
    """Return the number of operators by type after the default optimizations of ONNX Runtime's CPU provider."""
    options = onnxruntime.SessionOptions()
    options.optimized_model_filepath = str(folder / "optimized.onnx")
    options.log_severity_level = 3
    onnxruntime.InferenceSession(graph, options, providers=["CPUExecutionProvider"])
    nodes = onnx.load(folder / "optimized.onnx", load_external_data=False).graph.node
    return Counter(node.op_type for node in nodes)
