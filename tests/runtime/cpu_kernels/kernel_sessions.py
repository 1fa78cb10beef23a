"""Sessions with one operator of the kernels, and the instruction sets to run it with."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
import onnxruntime as ort
import pytest
from onnx import TensorProto, helper

from lopa.runtime.contract import Float32
from lopa.runtime.cpu_kernels.kernel_library import DOMAIN, kernel_library
from lopa.runtime.sessions.providers import multiply_exactly

Int8 = npt.NDArray[np.int8]
NEEDS_KERNELS = pytest.mark.skipif(
    kernel_library() is None, reason="the kernels need an x86-64 processor and a C++ compiler"
)
MICROSOFT = "com.microsoft"
_FLAGS = {"avx512-vnni": "avx512_vnni", "avx-vnni": "avx_vnni", "avx2": "avx2"}
"""Processor flags of Linux by instruction set."""


def available_sets() -> list[str]:
    """Return the instruction sets that this processor has."""
    cpuinfo = Path("/proc/cpuinfo")
    flags = set(cpuinfo.read_text().split()) if cpuinfo.exists() else set()
    return [name for name, flag in _FLAGS.items() if flag in flags]


def session(
    operator: str,
    inputs: dict[str, int],
    initializers: Sequence[onnx.TensorProto],
    *,
    domain: str = DOMAIN,
    threads: int = 1,
    **attributes: int,
) -> ort.InferenceSession:
    """Return a session of model_of."""
    model = model_of(operator, inputs, initializers, domain=domain, **attributes)
    return open_model(model.SerializeToString(), threads)


def model_of(
    operator: str,
    inputs: dict[str, int],
    initializers: Sequence[onnx.TensorProto],
    *,
    domain: str = DOMAIN,
    **attributes: int,
) -> onnx.ModelProto:
    """Return a model with one node, whose first inputs are the graph's, with the types `inputs`."""
    names = [*inputs, *(each.name for each in initializers)]
    node = helper.make_node(operator, names, ["y"], domain=domain, **attributes)
    graph = helper.make_graph(
        [node],
        "operator",
        [helper.make_tensor_value_info(name, dtype, None) for name, dtype in inputs.items()],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)],
        initializers,
    )
    opsets = [helper.make_opsetid("", 21), helper.make_opsetid(MICROSOFT, 1), helper.make_opsetid(DOMAIN, 1)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=10)


def open_model(model: bytes | Path, threads: int) -> ort.InferenceSession:
    """Return a session of a model with the operators of the kernels."""
    options = ort.SessionOptions()
    options.intra_op_num_threads = threads
    options.log_severity_level = 4
    multiply_exactly(options)
    library = kernel_library()
    assert library is not None
    library.add_operators(options)
    return ort.InferenceSession(model, options, providers=["CPUExecutionProvider"])


def run(one: ort.InferenceSession, **inputs: npt.NDArray[Any]) -> Float32:
    """Return the output of the session."""
    (output,) = one.run(None, inputs)
    assert isinstance(output, np.ndarray)
    return output


def packed(integers: Int8, name: str = "w") -> onnx.TensorProto:
    """Return an initializer of int4 numbers, two per byte, the first in the low half."""
    pairs = integers.reshape(-1, 2)
    numbers = ((pairs[:, 0] & 15) | ((pairs[:, 1] & 15) << 4)).astype(np.uint8)
    return helper.make_tensor(name, TensorProto.INT4, integers.shape, numbers.tobytes(), raw=True)
