"""Graphs in ONNX Runtime: sessions on one thread, random inputs, statistics, and operators when optimized."""

from collections import Counter
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
from tests.runtime.random_windows import random_batch
from tests.runtime.sequential import sequential

from lopa.runtime.bundle import Bundle
from lopa.runtime.contract import Statistics, WindowBatch
from lopa.runtime.sessions.session import open_session

Arrays = dict[str, np.ndarray]


def opened(graph: Path | bytes, *, is_fp8: bool = False) -> onnxruntime.InferenceSession:
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    options.log_severity_level = 3
    options.add_session_config_entry("session.qdq_matmulnbits_accuracy_level", "1")  # rows of int4 products stay floats
    if is_fp8:  # ONNX Runtime would fuse its products to an operator that lacks FP8
        options.add_session_config_entry("session.disable_quant_qdq", "1")
    return onnxruntime.InferenceSession(graph, options, providers=["CPUExecutionProvider"])


def random_inputs(graph: Path, r: int, b: int, w: int, p: int, q: int, *, seed: int) -> Arrays:
    """Return random inputs of a standard graph or stage; every row sees itself, as the contract requires."""
    rng = np.random.default_rng(seed)
    axes = {"requests": r, "branches": b, "window": w, "prefix": p, "rows": q}
    inputs: Arrays = {}
    for value in onnx.load(graph, load_external_data=False).graph.input:
        form = value.type.tensor_type
        shape = [axis.dim_value or axes[axis.dim_param] for axis in form.shape.dim]
        dtype = onnx.helper.tensor_dtype_to_np_dtype(form.elem_type)
        if dtype == np.bool_:
            inputs[value.name] = rng.random(shape) < 0.5
        elif dtype == np.int64:
            inputs[value.name] = rng.integers(0, {"input_ids": 24, "position_ids": 512}.get(value.name, w), shape)
        else:
            inputs[value.name] = rng.standard_normal(shape).astype(dtype)
    inputs["window_mask"] |= np.eye(w, dtype=np.bool_)
    inputs["temperature"] = rng.uniform(0.4, 2.0, r).astype(np.float32)
    return inputs


def statistics_of(bundle: Bundle, device: str = "cpu", batch: WindowBatch | None = None) -> Statistics:
    """Return the statistics of a forward on one thread: of `batch`, or of two requests with three branches."""
    some = batch or random_batch(np.random.default_rng(0), [0, 1], 3, 40, 20)
    some = replace(some, input_ids=some.input_ids % bundle.manifest.dimensions.vocab_size)
    with closing(open_session(bundle, device, threads=1)) as session:
        return sequential(session).forward(some)


def operators_when_optimized(graph: Path, folder: Path) -> Counter[str]:
    """Return the number of operators by type after the default optimizations of ONNX Runtime's CPU provider."""
    options = onnxruntime.SessionOptions()
    options.optimized_model_filepath = str(folder / "optimized.onnx")
    options.log_severity_level = 3
    onnxruntime.InferenceSession(graph, options, providers=["CPUExecutionProvider"])
    nodes = onnx.load(folder / "optimized.onnx", load_external_data=False).graph.node
    return Counter(node.op_type for node in nodes)
