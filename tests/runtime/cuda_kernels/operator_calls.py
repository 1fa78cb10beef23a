"""Program that calls the operators of lopa.cuda in ONNX Runtime, with the stand-in for NVIDIA's driver.

It writes the results of right calls to the file that its argument names (npz), and prints the errors of wrong ones as
JSON. It runs in a process of its own.
"""

import json
import sys
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
from onnx import TensorProto, helper
from tests.runtime.cuda.stand_in_cudart import StandInCudart
from tests.runtime.cuda_kernels.compiled_sample import compiled_sample
from tests.runtime.cuda_kernels.stand_in_driver import StandInDriver

from lopa.runtime.contract.sizes import Sizes
from lopa.runtime.cuda_kernels.attention_tasks import AttentionHeads, attention_work
from lopa.runtime.cuda_kernels.kernel_archive import archive_of_file

FLOAT, BOOL, INT32, INT64 = TensorProto.FLOAT, TensorProto.BOOL, TensorProto.INT32, TensorProto.INT64
HEADS = {"heads": 4, "kv_heads": 2, "head_size": 16}
ONE = np.ones((2, 32), np.float32)
MASK, PREFIX = np.ones((1, 1, 2, 2), np.bool_), np.ones((1, 64), np.bool_)
ANGLES = np.ones((1, 2, 8), np.float32)
FUSED = np.ones((1, 2, 128), np.float32)
QUERY, ROWS = np.ones((1, 2, 64), np.float32), np.ones((1, 1, 2, 2, 16), np.float32)
PAST = np.ones((1, 2, 64, 16), np.float32)
LISTS = [np.zeros(shape, np.int32) for shape in ((2, 3), (1, 8), (0, 4))] + [np.zeros(1, np.int64)]
ATTENTION: list[Any] = [QUERY, ROWS, ROWS, PAST, PAST, PREFIX, MASK, *LISTS]
LOGITS = np.ones((1, 1, 2, 32), np.float32)
TEMPERATURE = np.ones(1, np.float32)


RNG = np.random.default_rng(62)


def normal(*shape: int) -> Any:
    return RNG.standard_normal(shape, np.float32)


SIZES = Sizes(requests=2, branches=2, window=5, prefix=640, wanted=1)
LENGTHS = [600, 64]
"""Cached rows. The first request's are split into parts."""
WORK = attention_work(LENGTHS, SIZES, AttentionHeads(4, 2, 16))
WINDOWS = RNG.random((2, 2, 5, 5)) < 0.6
CACHED = np.arange(640) < np.array(LENGTHS)[:, None]
TURNED = np.cos(normal(4, 5, 4)), np.sin(normal(4, 5, 4))
OWN = [normal(2, 2, 2, 5, 16), normal(2, 2, 2, 5, 16), normal(2, 2, 640, 16), normal(2, 2, 640, 16)]
RIGHT: dict[str, tuple[str, dict[str, Any], list[Any], int]] = {
    "norm": ("RmsNorm", {"epsilon": 0.5}, [normal(3, 48), normal(48)], 1),
    "sum and norm": ("SkipRmsNorm", {"epsilon": 0.5}, [normal(2, 3, 720), normal(2, 3, 720), normal(720)], 2),
    "fused rotary": (
        "SplitRotary",
        HEADS,
        [normal(4, 5, 128), WINDOWS, *TURNED, None, None, normal(128)],
        3,
    ),
    "rotary with norms": (
        "SplitRotary",
        HEADS | {"epsilon": 0.5},
        [normal(4, 5, 64), WINDOWS, *TURNED, normal(4, 5, 32), normal(4, 5, 32), None, normal(16), normal(16)],
        3,
    ),
    "attention": (
        "BranchAttention",
        HEADS,
        [normal(4, 5, 64), *OWN, CACHED, WINDOWS, WORK.rows, WORK.tasks, WORK.merges, WORK.chunks],
        1,
    ),
    "fused product": ("SwiGlu", {}, [normal(2, 3, 4096)], 1),
    "product": ("SwiGlu", {}, [normal(6, 1040), normal(6, 1040)], 1),
    "statistics": (
        "TokenStatistics",
        {"candidates": 8},
        [4 * normal(2, 2, 3, 9001), np.array([0.5, 2.0], np.float32)],
        3,
    ),
}
"""Operator, attributes, inputs and number of compared outputs by name."""


def changed(inputs: list[Any], place: int, value: Any) -> list[Any]:
    return [value if index == place else each for index, each in enumerate(inputs)]


CALLS: dict[str, tuple[str, dict[str, Any], list[Any], int]] = {
    "norm": ("RmsNorm", {"epsilon": 1e-6}, [ONE, ONE[0]], 1),
    "norm with another weight": ("RmsNorm", {"epsilon": 1e-6}, [ONE, ONE[0, :16]], 1),
    "norm of rows that differ": ("SkipRmsNorm", {"epsilon": 1e-6}, [ONE, ONE[:1], ONE[0]], 2),
    "rotary": ("SplitRotary", HEADS, [FUSED, MASK, ANGLES, ANGLES], 3),
    "rotary of too few channels": ("SplitRotary", HEADS, [FUSED[..., :96], MASK, ANGLES, ANGLES], 3),
    "rotary without an angle": ("SplitRotary", HEADS, [FUSED, MASK, ANGLES[:, :1], ANGLES[:, :1]], 3),
    "rotary with one norm": ("SplitRotary", HEADS, [FUSED, MASK, ANGLES, ANGLES, None, None, None, ONE[0, :16]], 3),
    "rotary with a short bias": ("SplitRotary", HEADS, [FUSED, MASK, ANGLES, ANGLES, None, None, ONE[0]], 3),
    "rotary with keys alone": ("SplitRotary", HEADS, [QUERY, MASK, ANGLES, ANGLES, ONE.reshape(1, 2, 32)], 3),
    "attention": ("BranchAttention", HEADS, ATTENTION, 2),
    "attention to a short mask": ("BranchAttention", HEADS, changed(ATTENTION, 5, PREFIX[:, :32]), 2),
    "attention to other heads": ("BranchAttention", HEADS, changed(ATTENTION, 3, PAST[:, :1]), 2),
    "attention with odd tasks": ("BranchAttention", HEADS, changed(ATTENTION, 8, np.zeros((1, 7), np.int32)), 2),
    "attention without a chunk": ("BranchAttention", HEADS, changed(ATTENTION, 10, np.zeros(0, np.int64)), 2),
    "attention with few rows": ("BranchAttention", HEADS, changed(ATTENTION, 7, np.zeros((1, 3), np.int32)), 2),
    "product": ("SwiGlu", {}, [ONE], 1),
    "product of odd rows": ("SwiGlu", {}, [ONE[:, :31]], 1),
    "product of other sizes": ("SwiGlu", {}, [ONE, ONE[:, :16]], 1),
    "statistics": ("TokenStatistics", {"candidates": 8}, [LOGITS, TEMPERATURE], 4),
    "statistics of few tokens": ("TokenStatistics", {"candidates": 8}, [LOGITS[..., :7], TEMPERATURE], 4),
    "statistics of two requests": ("TokenStatistics", {"candidates": 8}, [LOGITS, np.ones(2, np.float32)], 4),
    "statistics without a kernel": ("TokenStatistics", {"candidates": 16}, [LOGITS, TEMPERATURE], 4),
}
"""Operator, attributes, inputs and number of outputs by name. Those with one word are right."""
_TYPES = {"float32": FLOAT, "bool": BOOL, "int32": INT32, "int64": INT64}
_COUNTS = {"BranchAttention": 2, "TokenStatistics": 4}
"""Outputs, where the last is a workspace."""
_OUTPUTS = {"TokenStatistics": (INT64, FLOAT, FLOAT, FLOAT)}


def results(driver: StandInDriver, name: str, attributes: dict[str, Any], inputs: list[Any], outputs: int) -> list[Any]:
    """Run an operator and return its outputs."""
    names = ["" if each is None else f"in{index}" for index, each in enumerate(inputs)]
    found = [f"out{index}" for index in range(outputs)]
    node = helper.make_node(name, names, found, domain="lopa.cuda", **attributes)
    values = {each: value for each, value in zip(names, inputs, strict=True) if each}
    graph = helper.make_graph(
        [node],
        "one",
        [helper.make_tensor_value_info(each, _TYPES[str(value.dtype)], value.shape) for each, value in values.items()],
        [
            helper.make_tensor_value_info(each, kind, None)
            for each, kind in zip(found, _OUTPUTS.get(name, (FLOAT,) * outputs), strict=True)
        ],
    )
    opsets = [helper.make_opsetid("", 21), helper.make_opsetid("lopa.cuda", 1)]
    model: onnx.ModelProto = helper.make_model(graph, opset_imports=opsets, ir_version=10)
    options = ort.SessionOptions()
    options.log_severity_level = 4
    driver.library.add_operators(options)
    session = ort.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    found_arrays: list[Any] = session.run(None, values)
    assert name != "BranchAttention" or len(inputs[9]) or not found_arrays[1].size, "a workspace that no merge reads"
    return found_arrays


def error_of(driver: StandInDriver, *call: Any) -> str:
    """Run an operator. Return "" or the error."""
    try:
        results(driver, *call)
    except Exception as error:
        return str(error)
    return ""


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        archive = archive_of_file(compiled_sample(Path(folder)))
        driver = StandInDriver(Path(folder), StandInCudart())
        kernels = dict(archive.kernels)
        some = kernels["swiglu.fp32"]
        loads = {
            "no image": replace(some, image=b"nothing of that kind\0"),
            "no entry": replace(some, entry="another_kernel"),
            "large blocks": replace(some, shared_bytes=300 * 1024),
            "many arguments": replace(some, arguments=99),
        }
        found = {}
        for name, kernel in loads.items():
            found[name] = refused_load(driver, {**kernels, "swiglu.fp32": kernel})
        found["before loading"] = error_of(driver, *CALLS["product"])
        driver.set_capturing(True)
        found["in a capture"] = refused_load(driver, kernels)
        driver.set_capturing(False)
        driver.watch(kernels)
        driver.library.load(0, kernels)
        driver.set_capturing(True)  # forwards load nothing, so they can be captured
        found |= {name: error_of(driver, *call) for name, call in CALLS.items()}
        arrays = {}
        for name, (operator, attributes, inputs, count) in RIGHT.items():
            outputs = results(driver, operator, attributes, inputs, _COUNTS.get(operator, count))
            arrays |= {f"{name} {index}": array for index, array in enumerate(outputs[:count])}
        np.savez(sys.argv[1], **arrays)
        print(json.dumps(found | {"errors of references": driver.errors}))


def refused_load(driver: StandInDriver, kernels: Any) -> str:
    """Load kernels. Return "" or the error."""
    try:
        driver.library.load(0, kernels)
    except Exception as error:
        return str(error)
    return ""


if __name__ == "__main__":
    main()
