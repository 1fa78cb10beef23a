"""Products with quantized matrices: every instruction set of this processor against exact references."""

import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import numpy as np
import numpy.typing as npt
import onnxruntime as ort
import pytest
from onnx import TensorProto, numpy_helper
from tests.runtime.cpu_kernels.kernel_sessions import (
    MICROSOFT,
    NEEDS_KERNELS,
    Int8,
    available_sets,
    packed,
    run,
    session,
)

from lopa.runtime.contract import Float32
from lopa.runtime.cpu_kernels.kernel_library import BLOCK, KernelLibrary

pytestmark = NEEDS_KERNELS


def int4_matrix(rng: np.random.Generator, inputs: int, outputs: int) -> tuple[Int8, Float32]:
    integers = rng.integers(-8, 8, (inputs, outputs), dtype=np.int8)
    return integers, (rng.random((inputs // BLOCK, outputs)) * 0.01).astype(np.float32)


def int4_session(integers: Int8, scales: Float32 | npt.NDArray[np.float16], threads: int = 1) -> ort.InferenceSession:
    operator = "MatMulInt4" if scales.dtype == np.float32 else "MatMulInt4HalfScales"
    return session(
        operator, {"x": TensorProto.FLOAT}, [packed(integers), numpy_helper.from_array(scales, "s")], threads=threads
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


SHAPES = [(1, 32, 2), (3, 64, 130), (37, 256, 384), (130, 96, 1000), (257, 32, 18)]
"""Rows, inputs, outputs: parts of a tile, several strips, more rows than one pass."""


@pytest.mark.parametrize("scale_type", [np.float32, np.float16])
@pytest.mark.parametrize(("rows", "inputs", "outputs"), SHAPES)
def test_int4_products_round_blocks_of_rows_and_are_exact_otherwise(
    instruction_set: str, rows: int, inputs: int, outputs: int, scale_type: type[np.floating]
) -> None:
    rng = np.random.default_rng(rows)
    integers, drawn = int4_matrix(rng, inputs, outputs)
    stored = drawn.astype(scale_type)
    scales = stored.astype(np.float32)
    x = (rng.standard_normal((rows, inputs)) * rng.choice([1e-6, 0.01, 1, 30], (rows, 1))).astype(np.float32)
    product = run(int4_session(integers, stored), x=x)
    expected = rounded_product(x, integers, scales)
    sizes = np.abs(x).astype(np.float64) @ np.abs(integers * np.repeat(scales, BLOCK, axis=0))
    assert (np.abs(product - expected) <= 2e-6 * sizes).all()
    # Without rounding, each number of a block is off by at most half a step.
    true = x.astype(np.float64) @ (integers * np.repeat(scales, BLOCK, axis=0)).astype(np.float64)
    steps = np.abs(x).reshape(rows, -1, BLOCK).max(axis=2) / 127
    weights = np.abs(integers).reshape(-1, BLOCK, outputs).sum(axis=1) * scales
    assert (np.abs(product - true) <= (0.5 + 1e-3) * (steps @ weights) + 1e-5 * sizes).all()


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
    integers = rng.integers(-128, 128, (inputs, outputs), dtype=np.int8)
    scales = numpy_helper.from_array((rng.random(outputs) * 0.01).astype(np.float32), "s")
    matrix = numpy_helper.from_array(integers, "w")
    ours = session("MatMulInt8", {"x": TensorProto.UINT8}, [matrix, scales])
    one, zero = numpy_helper.from_array(np.float32(1), "one"), numpy_helper.from_array(np.uint8(128), "zero")
    theirs = session("MatMulIntegerToFloat", {"x": TensorProto.UINT8}, [matrix, one, scales, zero], domain=MICROSOFT)
    x = rng.integers(1, 256, (rows, inputs)).astype(np.uint8)
    assert (run(ours, x=x) == run(theirs, x=x)).all()


def int8_session(integers: Int8, scales: Float32, threads: int = 1) -> ort.InferenceSession:
    matrix, factors = numpy_helper.from_array(integers, "w"), numpy_helper.from_array(scales, "s")
    return session("MatMulInt8", {"x": TensorProto.UINT8}, [matrix, factors], threads=threads)


@pytest.mark.parametrize("rows", [1, 2, 3, 4, 7, 130])
@pytest.mark.parametrize(("inputs", "outputs"), [(1, 1), (31, 33), (64, 128), (97, 260)])
def test_int8_extremes_are_exact(instruction_set: str, rows: int, inputs: int, outputs: int) -> None:
    rng = np.random.default_rng(rows)
    integers = rng.choice([-128, -127, 127], (inputs, outputs)).astype(np.int8)
    scales = rng.random(outputs).astype(np.float32)
    x = rng.choice([1, 128, 255], (rows, inputs)).astype(np.uint8)
    exact = (x.astype(np.int64) - 128) @ integers.astype(np.int64)
    assert (run(int8_session(integers, scales), x=x) == exact.astype(np.float32) * scales).all()


def test_int8_sums_never_overflow(instruction_set: str) -> None:
    integers, most = np.full((131072, 2), -128, np.int8), np.full((3, 131072), 1, np.uint8)
    one = int8_session(integers[:-1], np.ones(2, np.float32))
    assert (run(one, x=most[:, :-1]) == np.float32(131071 * 127 * 128)).all()
    with pytest.raises(Exception, match="MatMulInt8: a row has more than 131071 numbers"):
        run(int8_session(integers, np.ones(2, np.float32)), x=most)


@pytest.mark.parametrize("size", [1e-20, 1e20, 3e38])
@pytest.mark.parametrize("rows", [1, 2, 3, 5])
def test_int4_rows_of_any_size(instruction_set: str, size: float, rows: int) -> None:
    """The result is in the range of float32, though products before their scales would not be."""
    rng = np.random.default_rng(9)
    integers, scales = int4_matrix(rng, 96, 150)
    x = rng.uniform(-1, 1, (rows, 96)).astype(np.float32)
    exact = rounded_product(x, integers, scales * np.float32(1e-3))
    product = run(int4_session(integers, scales * np.float32(1e-3)), x=x * np.float32(size)) / np.float64(size)
    np.testing.assert_allclose(product, exact, rtol=1e-3, atol=2e-4 * np.abs(exact).max())


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_numbers_that_are_not_finite_stay_in_their_row(instruction_set: str, value: float) -> None:
    """They stand at every place. Zeros stay zero."""
    rng = np.random.default_rng(10)
    integers, scales = int4_matrix(rng, 64, 40)
    integers[5] = 0
    x = rng.standard_normal((66, 64)).astype(np.float32)
    expected = run(int4_session(integers, scales), x=x)[64]
    x[np.diag_indices(64)], x[65] = value, 0
    for part in (x, x[63:], x[62:]):
        product = run(int4_session(integers, scales), x=part)
        assert np.isnan(product[:-2]).all()
        assert (product[-2] == expected).all()
        assert (product[-1] == 0).all()


@pytest.mark.parametrize("bits", [4, 8])
def test_results_depend_on_the_row_alone(library: KernelLibrary, bits: int) -> None:
    """Numbers of rows are computed in different passes (strips.h). The last block and tile are parts."""
    rng = np.random.default_rng(5)
    if bits == 4:
        integers, scales = int4_matrix(rng, 224, 650)
        one, x = partial(int4_session, integers, scales), rng.standard_normal((133, 224)).astype(np.float32)
    else:
        matrix = rng.integers(-128, 128, (250, 650), dtype=np.int8)
        one, x = partial(int8_session, matrix, rng.random(650, np.float32)), rng.integers(1, 256, (133, 250), np.uint8)
    expected = run(one(), x=x)
    for name in available_sets():
        library.select(name)
        for threads in (1, 3):
            opened = one(threads)
            assert (run(opened, x=x) == expected).all()
            for rows in range(1, 27):
                assert (run(opened, x=x[None, 7 : 7 + rows]) == expected[None, 7 : 7 + rows]).all()
            assert run(opened, x=x[:0]).shape == (0, 650)


def test_threads_share_a_session(instruction_set: str) -> None:
    rng = np.random.default_rng(6)
    integers, scales = int4_matrix(rng, 512, 700)
    one = int4_session(integers, scales, threads=2)
    batches = [rng.standard_normal((rows, 512)).astype(np.float32) for rows in (1, 40, 150, 9) * 4]
    expected = [run(one, x=x) for x in batches]
    with ThreadPoolExecutor(4) as pool:
        products = list(pool.map(lambda x: run(one, x=x), batches))
    assert all((a == b).all() for a, b in zip(products, expected, strict=True))


@pytest.mark.parametrize(
    ("inputs", "shape", "blocks"), [(64, (32, 4), 1), (64, (64, 4), 1), (64, (64, 5), 2), (48, (48, 4), 1)]
)
def test_wrong_shapes_are_errors(inputs: int, shape: tuple[int, int], blocks: int) -> None:
    integers = np.zeros((shape[0], shape[1] + shape[1] % 2), np.int8)
    matrix = packed(integers)
    matrix.dims[1] = shape[1]
    matrix.raw_data = matrix.raw_data[: -(-shape[0] * shape[1] // 2)]
    scales = numpy_helper.from_array(np.ones((blocks, shape[1]), np.float32), "s")
    one = session("MatMulInt4", {"x": TensorProto.FLOAT}, [matrix, scales])
    with pytest.raises(Exception, match=f"MatMulInt4: rows of {inputs} numbers do not fit"):
        one.run(None, {"x": np.ones((2, inputs), np.float32)})


def test_unknown_instruction_sets_are_rejected(library: KernelLibrary) -> None:
    with pytest.raises(ValueError, match="received 'mmx', expected avx512-vnni"):
        library.select("mmx")


_SMALL_STACK = """
import threading
import numpy as np
from tests.runtime.cpu_kernels.test_products import int4_session, int8_session, run
integers, results = np.ones((64, 4096), np.int8), []
int4 = int4_session(integers, np.ones((2, 4096), np.float32))
int8 = int8_session(integers, np.ones(4096, np.float32))
def multiply():
    results.append(run(int4, x=np.ones((128, 64), np.float32)))
    results.append(run(int8, x=np.full((128, 64), 129, np.uint8)))
threading.stack_size(256 * 1024)
thread = threading.Thread(target=multiply)
thread.start()
thread.join()
print([int(result.min()) for result in results])
"""


def output_of(program: str) -> str:
    """Return what a Python program prints in its own process."""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False, timeout=300)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_threads_may_have_small_stacks() -> None:
    assert output_of(_SMALL_STACK) == "[64, 64]\n"


_TASKS = """
import numpy as np
from tests.runtime.cpu_kernels.stand_in_ort import StandInRuntime
from lopa.runtime.cpu_kernels.kernel_library import kernel_library
x, w = np.full((300, 512), 129, np.uint8), np.ones((512, 3584), np.int8)
rows, ids, ones = np.ones((2, 512), np.float32), np.array([[0], [1]]), np.ones((2, 1), np.float32)
stacks = [np.ones(shape, np.float32) for shape in ((2, 512, 640), (2, 512, 640), (2, 640, 512))]
for threads in (1, 2, 16, 128):
    runtime = StandInRuntime(kernel_library(), str(threads))
    assert (runtime.run("MatMulInt8", [x, w, np.ones(3584, np.float32)], 3584) == 512).all()
    assert (runtime.run("MatMulInt8", [x[:1], w, np.ones(3584, np.float32)], 3584) == 512).all()
    result = runtime.run("ExpertsFloat", [rows, ids, ones, *stacks], 512)
    assert np.allclose(result, 512 * 512 * 640)
    print(runtime.tasks)
"""


def test_the_number_of_tasks_follows_the_threads_of_the_session() -> None:
    """300 rows are ordered in 75 tasks, and multiplied by strips of 28 tiles. One row is, too. Then 2 experts follow,
    of 5 and 4 tiles. A loop with one task is none.
    """
    one, two, many = "[75, 14, 2, 2]", "[75, 14, 10, 10, 8]", "[75, 28, 28, 10, 8]"
    assert output_of(_TASKS).splitlines() == [one, two, many, many]
