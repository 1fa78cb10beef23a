"""Graphs in ONNX Runtime: sessions on one thread, random inputs of the contract, and operators when optimized."""

from collections import Counter
from pathlib import Path

import numpy as np
import onnx
import onnxruntime

from lopa.runtime.bundle.manifest import ModelDimensions
from lopa.runtime.contract import past_names

Arrays = dict[str, np.ndarray]


def opened(graph: Path | bytes) -> onnxruntime.InferenceSession:
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    options.log_severity_level = 3
    return onnxruntime.InferenceSession(graph, options, providers=["CPUExecutionProvider"])


def random_inputs(
    dimensions: ModelDimensions, r: int, b: int, w: int, p: int, q: int, *, seed: int, dtype: str = "float32"
) -> Arrays:
    """Return random inputs of a standard graph; every row sees itself, as the contract requires."""
    rng = np.random.default_rng(seed)
    past = (r, dimensions.kv_heads, p, dimensions.head_size)
    return {
        "input_ids": rng.integers(0, dimensions.vocab_size, (r, b, w)),
        "position_ids": rng.integers(0, dimensions.max_positions, (r, b, w)),
        "window_mask": (rng.random((r, b, w, w)) < 0.5) | np.eye(w, dtype=np.bool_),
        "prefix_mask": rng.random((r, p)) < 0.5,
        "logits_index": rng.integers(0, w, (r, b, q)),
        "temperature": rng.uniform(0.4, 2.0, r).astype(np.float32),
        **{name: rng.standard_normal(past).astype(dtype) for name in past_names(dimensions.layers)},
    }


def operators_when_optimized(graph: Path, folder: Path) -> Counter[str]:
    """Return the number of operators by type after the default optimizations of ONNX Runtime's CPU provider."""
    options = onnxruntime.SessionOptions()
    options.optimized_model_filepath = str(folder / "optimized.onnx")
    options.log_severity_level = 3
    onnxruntime.InferenceSession(graph, options, providers=["CPUExecutionProvider"])
    nodes = onnx.load(folder / "optimized.onnx", load_external_data=False).graph.node
    return Counter(node.op_type for node in nodes)
