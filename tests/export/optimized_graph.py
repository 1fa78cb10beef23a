"""What ONNX Runtime makes of a graph."""

from collections import Counter
from pathlib import Path

import onnx
import onnxruntime


def operators_when_optimized(graph: Path, folder: Path) -> Counter[str]:
    """Operators of what ONNX Runtime's CPU makes of the graph by default."""
    options = onnxruntime.SessionOptions()
    options.optimized_model_filepath = str(folder / "optimized.onnx")
    options.log_severity_level = 3
    onnxruntime.InferenceSession(graph, options, providers=["CPUExecutionProvider"])
    nodes = onnx.load(folder / "optimized.onnx", load_external_data=False).graph.node
    return Counter(node.op_type for node in nodes)
