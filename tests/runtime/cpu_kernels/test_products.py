"""Products with quantized matrices: every instruction set of this processor against exact references."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
import onnxruntime as ort
import pytest
import torch
from onnx import TensorProto, helper, numpy_helper

from lopa.runtime.contract import Float32
from lopa.runtime.cpu_kernels.kernel_library import BLOCK, DOMAIN, KernelLibrary, kernel_library

Int8 = npt.NDArray[np.int8]
_FLAGS = {"avx512-vnni": "avx512_vnni", "avx-vnni": "avx_vnni", "avx2": "avx2"}
"""Processor flags of Linux by instruction set."""
_MICROSOFT = "com.microsoft"
_LIBRARY = kernel_library()
pytestmark = pytest.mark.skipif(_LIBRARY is None, reason="the kernels need an x86-64 processor and a C++ compiler")


def available_sets() -> list[str]:
    """Return the instruction sets that this processor has."""
    cpuinfo = Path("/proc/cpuinfo")
    flags = set(cpuinfo.read_text().split()) if cpuinfo.exists() else set()
    return [name for name, flag in _FLAGS.items() if flag in flags]


@pytest.fixture
def library() -> Iterator[KernelLibrary]:
    """Return the library, and select the instruction set that it had before."""
    assert _LIBRARY is not None
    before = _LIBRARY.instruction_set
    assert before is not None
    yield _LIBRARY
    _LIBRARY.select(before)


@pytest.fixture(params=available_sets())
def instruction_set(library: KernelLibrary, request: pytest.FixtureRequest) -> str:
    library.select(request.param)
    assert library.instruction_set == request.param
    return str(request.param)


def session(
    operator: str, rows: int, initializers: list[onnx.TensorProto], *, domain: str = DOMAIN, threads: int = 1
) -> ort.InferenceSession:
    """Return a session with one node, whose first input is the graph's input of type `rows`."""
    node = helper.make_node(operator, ["x", *(each.name for each in initializers)], ["y"], domain=domain)
    graph = helper.make_graph(
        [node],
        "product",
        [helper.make_tensor_value_info("x", rows, None)],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)],
        initializers,
    )
    opsets = [helper.make_opsetid("", 21), helper.make_opsetid(_MICROSOFT, 1), helper.make_opsetid(DOMAIN, 1)]
    options = ort.SessionOptions()
    options.intra_op_num_threads = threads
    options.log_severity_level = 4
    assert _LIBRARY is not None
    _LIBRARY.add_operators(options)
    model = helper.make_model(graph, opset_imports=opsets, ir_version=10)
    return ort.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])


def run(one: ort.InferenceSession, rows: npt.NDArray[Any]) -> Float32:
    (product,) = one.run(None, {"x": rows})
    assert isinstance(product, np.ndarray)
    return product


def packed(integers: Int8) -> onnx.TensorProto:
    """Return an initializer of int4 numbers, two per byte, the first in the low half."""
    pairs = integers.reshape(-1, 2)
    numbers = ((pairs[:, 0] & 15) | ((pairs[:, 1] & 15) << 4)).astype(np.uint8)
    return helper.make_tensor("w", TensorProto.INT4, integers.shape, numbers.tobytes(), raw=True)


def int4_matrix(rng: np.random.Generator, inputs: int, outputs: int) -> tuple[Int8, Float32]:
    integers = rng.integers(-8, 8, (inputs, outputs), dtype=np.int8)
    return integers, (rng.random((inputs // BLOCK, outputs)) * 0.01).astype(np.float32)


def int4_session(integers: Int8, scales: Float32 | npt.NDArray[np.float16], threads: int = 1) -> ort.InferenceSession:
    operator = "MatMulInt4" if scales.dtype == np.float32 else "MatMulInt4HalfScales"
    return session(
        operator, TensorProto.FLOAT, [packed(integers), numpy_helper.from_array(scales, "s")], threads=threads
    )


def rounded_product(rows: Float32, integers: Int8, scales: Float32) -> npt.NDArray[np.float64]:
    """Return the product in float64 after the documented rounding of each block of a row."""
    blocks = rows.reshape(len(rows), -1, BLOCK)
    largest = np.abs(blocks).max(axis=2, keepdims=True)
    inverse = np.divide(np.float32(127), largest, out=np.zeros_like(largest), where=largest > 0)
    rounded = np.rint(blocks * inverse).astype(np.float64) * (largest / np.float32(127))
    weights = integers.astype(np.float64) * np.repeat(scales, BLOCK, axis=0)
    product: npt.NDArray[np.float64] = rounded.reshape(rows.shape) @ weights
    return product


SHAPES = [(1, 32, 2), (3, 64, 130), (37, 256, 384), (130, 96, 1000), (2, 1184, 512), (257, 32, 18)]
"""Rows, inputs, outputs: parts of a tile, several strips, more rows than one pass."""


@pytest.mark.parametrize(("rows", "inputs", "outputs"), SHAPES)
def test_int4_products_round_blocks_of_rows_and_are_exact_otherwise(
    instruction_set: str,
    rows: int,
    inputs: int,
    outputs: int,
) -> None:
    rng = np.random.default_rng(rows)
    integers, scales = int4_matrix(rng, inputs, outputs)
    x = (rng.standard_normal((rows, inputs)) * rng.choice([1e-6, 0.01, 1, 30], (rows, 1))).astype(np.float32)
    product = run(int4_session(integers, scales), x)
    expected = rounded_product(x, integers, scales)
    sizes = np.abs(x).astype(np.float64) @ np.abs(integers * np.repeat(scales, BLOCK, axis=0))
    assert (np.abs(product - expected) <= 2e-6 * sizes).all()
    # Without rounding, each number of a block is off by at most half a step.
    true = torch.from_numpy(x).double() @ torch.from_numpy(integers * np.repeat(scales, BLOCK, axis=0)).double()
    steps = np.abs(x).reshape(rows, -1, BLOCK).max(axis=2) / 127
    weights = np.abs(integers).reshape(-1, BLOCK, outputs).sum(axis=1) * scales
    assert (np.abs(product - true.numpy()) <= (0.5 + 1e-3) * (steps @ weights) + 1e-5 * sizes).all()


@pytest.mark.parametrize(("rows", "inputs", "outputs"), SHAPES)
def test_float16_scales_give_the_product_of_their_values(
    instruction_set: str,
    rows: int,
    inputs: int,
    outputs: int,
) -> None:
    rng = np.random.default_rng(rows)
    integers, scales = int4_matrix(rng, inputs, outputs)
    halves = scales.astype(np.float16)
    x = rng.standard_normal((rows, inputs)).astype(np.float32)
    assert (run(int4_session(integers, halves), x) == run(int4_session(integers, halves.astype(np.float32)), x)).all()


@pytest.mark.parametrize(
    ("rows", "inputs", "outputs"), [(1, 1, 1), (2, 33, 5), (3, 64, 130), (70, 250, 384), (129, 352, 1001)]
)
def test_int8_products_equal_those_of_onnxruntime(
    instruction_set: str,
    rows: int,
    inputs: int,
    outputs: int,
) -> None:
    rng = np.random.default_rng(outputs)
    integers = rng.integers(-127, 128, (inputs, outputs), dtype=np.int8)
    scales = numpy_helper.from_array((rng.random(outputs) * 0.01).astype(np.float32), "s")
    matrix = numpy_helper.from_array(integers, "w")
    ours = session("MatMulInt8", TensorProto.UINT8, [matrix, scales])
    one, zero = numpy_helper.from_array(np.float32(1), "one"), numpy_helper.from_array(np.uint8(128), "zero")
    theirs = session("MatMulIntegerToFloat", TensorProto.UINT8, [matrix, one, scales, zero], domain=_MICROSOFT)
    x = rng.integers(1, 256, (rows, inputs)).astype(np.uint8)
    assert (run(ours, x) == run(theirs, x)).all()


def test_results_depend_on_the_row_alone(library: KernelLibrary) -> None:
    rng = np.random.default_rng(5)
    integers, scales = int4_matrix(rng, 224, 650)
    x = rng.standard_normal((133, 224)).astype(np.float32)
    expected = run(int4_session(integers, scales), x)
    for name in available_sets():
        library.select(name)
        for threads in (1, 3):
            one = int4_session(integers, scales, threads)
            assert (run(one, x) == expected).all()
            assert (run(one, x[None, 7:10]) == expected[None, 7:10]).all()
            assert run(one, x[:0]).shape == (0, 650)


def test_threads_share_a_session(instruction_set: str) -> None:
    rng = np.random.default_rng(6)
    integers, scales = int4_matrix(rng, 512, 700)
    one = int4_session(integers, scales, threads=2)
    batches = [rng.standard_normal((rows, 512)).astype(np.float32) for rows in (1, 40, 150, 9) * 4]
    expected = [run(one, x) for x in batches]
    with ThreadPoolExecutor(4) as pool:
        products = list(pool.map(lambda x: run(one, x), batches))
    assert all((a == b).all() for a, b in zip(products, expected, strict=True))


def test_zeros_stay_zero_and_nan_stays_in_its_row(instruction_set: str) -> None:
    rng = np.random.default_rng(7)
    integers, scales = int4_matrix(rng, 64, 40)
    x = rng.standard_normal((6, 64)).astype(np.float32)
    expected = run(int4_session(integers, scales), x)
    x[1], x[3, 40] = 0, np.nan
    product = run(int4_session(integers, scales), x)
    assert (product[1] == 0).all()
    assert np.isnan(product[3]).all()
    assert (product[[0, 2, 4, 5]] == expected[[0, 2, 4, 5]]).all()


@pytest.mark.parametrize(
    ("inputs", "shape", "blocks"), [(64, (32, 4), 1), (64, (64, 4), 1), (64, (64, 5), 2), (48, (48, 4), 1)]
)
def test_wrong_shapes_are_errors(inputs: int, shape: tuple[int, int], blocks: int) -> None:
    integers = np.zeros((shape[0], shape[1] + shape[1] % 2), np.int8)
    matrix = packed(integers)
    matrix.dims[1] = shape[1]
    matrix.raw_data = matrix.raw_data[: -(-shape[0] * shape[1] // 2)]
    scales = numpy_helper.from_array(np.ones((blocks, shape[1]), np.float32), "s")
    one = session("MatMulInt4", TensorProto.FLOAT, [matrix, scales])
    with pytest.raises(Exception, match=f"MatMulInt4: rows of {inputs} numbers do not fit"):
        one.run(None, {"x": np.ones((2, inputs), np.float32)})


def test_unknown_instruction_sets_are_rejected(library: KernelLibrary) -> None:
    with pytest.raises(ValueError, match="received 'mmx', expected avx512-vnni"):
        library.select("mmx")
