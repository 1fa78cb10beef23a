"""Times of the kernels of lopa.runtime.cpu_kernels beside ONNX Runtime's and beside the machine's limits.

Usage: python -m tools.measure kernels [--threads N] [--only NAME] [--output FOLDER]

The peaks of 8-bit dot products and of reading memory are measured in turns with both sides. The limit of a product is
the longer of its operations and its bytes (weights and scales) at these rates. Every graph has enough copies of its
matrix, in a mapped file, to exceed the caches, as in a model. Times are minima.
"""

import ctypes
import os
import subprocess
import tempfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from itertools import product
from pathlib import Path
from time import perf_counter, thread_time

import click
import numpy as np
import numpy.typing as npt
import onnx
import onnxruntime as ort
from onnx import TensorProto, helper

from lopa.bench.table import MISSING, Table, markdown_from_table, ratio_text
from lopa.runtime.cpu_kernels.kernel_library import BLOCK, DOMAIN, kernel_library
from lopa.runtime.sessions.providers import multiply_exactly
from tools.report import show_report

Array = npt.NDArray[np.generic]
_MICROSOFT = "com.microsoft"
_ROWS = (1, 2, 4, 8, 16, 32, 64, 128, 256)
_SHAPES = ((896, 896), (896, 4864), (4864, 896), (3584, 3584), (3584, 18944), (18944, 3584))
"""Inputs and columns of matrices of a 0.5B and a 7B model."""
_EXPERTS = {"": (2048, 512, 256, 8), " gelu": (2816, 704, 128, 8)}
"""Sizes of LLaDA2.0-mini and DiffusionGemma-26B-A4B: hidden, inner, experts, experts of a row."""
_EXPERT_OPERATORS = (
    ("ExpertsInt4", TensorProto.INT4, 4),
    ("ExpertsInt8", TensorProto.INT8, 8),
    ("ExpertsFloat16", TensorProto.FLOAT16, 16),
)
"""Operators, types of their weights, and bits of a weight."""
_COLD_BYTES = 1 << 27
"""Bytes of all copies of a matrix: several times the size of usual caches."""
_DOTS, _READ_BYTES = 400_000, 1 << 26
"""Work of one measurement of the peaks, which is short beside a time slice."""
_SECONDS = 0.8
"""Seconds of the measurement of one number of rows."""


class _Peaks:
    """The machine's rates with a number of threads, which are measured whenever the kernels are."""

    def __init__(self, threads: int, pool: ThreadPoolExecutor, folder: Path) -> None:
        source, library = Path(__file__).with_name("peak_rates.cpp"), folder / "peak.so"
        flags = ["-O3", "-march=native", "-shared", "-fPIC"]
        subprocess.run([os.environ.get("CXX", "c++"), *flags, "-o", library, source], check=True)
        functions = ctypes.CDLL(str(library))
        functions.dots.argtypes, functions.read.argtypes = [ctypes.c_int64], [ctypes.c_void_p, ctypes.c_int64]
        run: Callable[..., Iterable[object]] = map if threads == 1 else pool.map
        blocks, counts = [np.ones(_READ_BYTES, np.uint8) for _ in range(threads)], [_DOTS] * threads
        self.calls: list[Callable[[], object]] = [
            lambda: list(run(functions.dots, counts)),
            lambda: list(run(lambda block: functions.read(block.ctypes.data, block.size), blocks)),
        ]
        self._work = (12 * _DOTS * threads * functions.dots(1), _READ_BYTES * threads)
        self._best = [float("inf")] * 2

    def add(self, seconds: Sequence[float]) -> None:
        """Add a measurement of the calls."""
        self._best = [min(pair) for pair in zip(self._best, seconds, strict=True)]

    def rates(self) -> tuple[float, float]:
        """Return int8 operations and bytes per second."""
        return self._work[0] / self._best[0], self._work[1] / self._best[1]


@dataclass(frozen=True, eq=False)
class _Side:
    """An operator with constants of random bytes: type and shape of each, or a scalar."""

    operator: str
    domain: str
    constants: tuple[tuple[int, tuple[int, ...]] | Array, ...]
    attributes: dict[str, int]


@dataclass(frozen=True, eq=False)
class _Case:
    """A kernel of lopa, ONNX Runtime's for the same product, and its inputs."""

    name: str
    ours: _Side
    theirs: _Side | None
    inputs: Callable[[int], dict[str, Array]]
    columns: int
    operations: int
    """Operations per row, in 8-bit ones: a vector of float products takes as long as one of dot products."""
    bytes: int
    """Bytes of weights and scales of a matrix, or of one expert."""
    experts: int = 1


def _cases() -> Iterator[_Case]:
    one, zero = np.array(1, np.float32), np.array(128, np.uint8)
    for k, n in _SHAPES:
        matrix, scales = (TensorProto.INT8, (k, n)), (TensorProto.FLOAT, (n,))
        ours = _Side("MatMulInt8", DOMAIN, (matrix, scales), {})
        theirs = _Side("MatMulIntegerToFloat", _MICROSOFT, (matrix, one, scales, zero), {})
        yield _Case(f"int8 {k} x {n}", ours, theirs, partial(_rounded, k), n, 2 * k * n, k * n + 4 * n)
        blocks = k // BLOCK
        ours = _Side("MatMulInt4", DOMAIN, ((TensorProto.INT4, (k, n)), (TensorProto.FLOAT, (blocks, n))), {})
        packed = ((TensorProto.UINT8, (n, blocks, BLOCK // 2)), (TensorProto.FLOAT, (n, blocks)))
        sizes = {"K": k, "N": n, "bits": 4, "block_size": BLOCK, "accuracy_level": 4}
        theirs = _Side("MatMulNBits", _MICROSOFT, packed, sizes)
        yield _Case(f"int4 {k} x {n}", ours, theirs, partial(_floats, k), n, 2 * k * n, k * n // 2 + 4 * blocks * n)
    for (suffix, sizes), (name, kind, bits) in product(_EXPERTS.items(), _EXPERT_OPERATORS):
        hidden, inner, experts, choices = sizes
        constants: list[tuple[int, tuple[int, ...]] | Array] = []
        size = 0
        for k, n in ((hidden, inner), (hidden, inner), (inner, hidden)):
            constants.append((kind, (experts, k, n)))
            groups = {4: k // BLOCK, 8: 1}.get(bits, 0)
            size += k * n * bits // 8 + 4 * groups * n
            if groups:
                constants.append((TensorProto.FLOAT, (experts, groups, n) if bits == 4 else (experts, n)))
        work = 6 * hidden * inner * choices * (4 if bits == 16 else 1)
        ours = _Side(name, DOMAIN, tuple(constants), {"gelu": 1} if suffix else {})
        yield _Case(name + suffix, ours, None, partial(_chosen, sizes), hidden, work, size, experts)


def _rounded(inputs: int, rows: int) -> dict[str, Array]:
    return {"x": np.random.default_rng(rows).integers(1, 256, (rows, inputs)).astype(np.uint8)}


def _floats(inputs: int, rows: int) -> dict[str, Array]:
    return {"x": np.random.default_rng(rows).standard_normal((rows, inputs), np.float32)}


def _chosen(sizes: tuple[int, int, int, int], rows: int) -> dict[str, Array]:
    hidden, _, experts, choices = sizes
    rng = np.random.default_rng(rows)
    ids = np.stack([rng.permutation(experts)[:choices] for _ in range(rows)])
    return {"rows": _floats(hidden, rows)["x"], "ids": ids, "weights": np.ones((rows, choices), np.float32)}


def _open(side: _Side, inputs: dict[str, Array], copies: int, folder: Path, threads: int) -> ort.InferenceSession:
    """Return a session with `copies` nodes that differ in their matrices."""
    rng, nodes, constants = np.random.default_rng(1), [], []
    with (folder / side.operator).open("wb") as file:
        for copy in range(copies):
            names = [f"{number}_{copy}" for number in range(len(side.constants))]
            for name, constant in zip(names, side.constants, strict=True):
                if not isinstance(constant, tuple):
                    constants.append(onnx.numpy_helper.from_array(np.asarray(constant), name))
                    continue
                kind, shape = constant
                tensor = TensorProto(name=name, data_type=kind, dims=shape, data_location=TensorProto.EXTERNAL)
                content = _content(rng, kind, int(np.prod(shape)))
                file.write(bytes(-file.tell() % 4096))
                places = {"location": side.operator, "offset": file.tell(), "length": len(content)}
                file.write(content)
                for key, value in places.items():
                    tensor.external_data.add(key=key, value=str(value))
                constants.append(tensor)
            nodes.append(
                helper.make_node(side.operator, [*inputs, *names], [f"y{copy}"], domain=side.domain, **side.attributes)
            )
    types = {name: helper.np_dtype_to_tensor_dtype(value.dtype) for name, value in inputs.items()}
    graph = helper.make_graph(
        nodes,
        side.operator,
        [helper.make_tensor_value_info(name, kind, None) for name, kind in types.items()],
        [helper.make_tensor_value_info(f"y{copy}", TensorProto.FLOAT, None) for copy in range(copies)],
        constants,
    )
    opsets = [helper.make_opsetid("", 21), helper.make_opsetid(_MICROSOFT, 1), helper.make_opsetid(DOMAIN, 1)]
    path = folder / f"{side.operator}.onnx"
    path.write_bytes(helper.make_model(graph, opset_imports=opsets, ir_version=10).SerializeToString())
    options = ort.SessionOptions()
    options.intra_op_num_threads = threads
    options.enable_cpu_mem_arena = options.enable_mem_pattern = False
    multiply_exactly(options)
    library = kernel_library()
    assert library is not None
    library.add_operators(options)
    return ort.InferenceSession(path, options, providers=["CPUExecutionProvider"])


def _binding(one: ort.InferenceSession, inputs: dict[str, Array], output: Array) -> ort.IOBinding:
    """Return a binding that writes all outputs to one place, which stays in the caches as in a model."""
    binding = one.io_binding()
    for name, value in inputs.items():
        binding.bind_cpu_input(name, value)
    for each in one.get_outputs():
        binding.bind_output(each.name, "cpu", 0, output.dtype, output.shape, output.ctypes.data)
    return binding


def _content(rng: np.random.Generator, kind: int, count: int) -> bytes:
    if kind == TensorProto.FLOAT:
        return (rng.random(count, np.float32) * np.float32(1e-3)).tobytes()
    if kind == TensorProto.FLOAT16:
        return (rng.random(count, np.float32) * np.float32(1e-2)).astype(np.float16).tobytes()
    return rng.bytes(count // 2 if kind == TensorProto.INT4 else count)


def _minima(calls: Sequence[Callable[[], object]], clock: Callable[[], float]) -> list[float]:
    """Return the minimum seconds of each, which take turns."""
    best = [float("inf")] * len(calls)
    for call in calls:
        call()
    end, rounds = perf_counter() + _SECONDS, 0
    while rounds < 3 or perf_counter() < end:
        rounds += 1
        for i, call in enumerate(calls):
            began = clock()
            call()
            best[i] = min(best[i], clock() - began)
    return best


def _table(case: _Case, peaks: _Peaks, threads: int, folder: Path) -> Table:
    """Measure a case. With one thread, the clock stops while other programs use its core."""
    copies, clock = max(1, _COLD_BYTES // (case.bytes * case.experts)), thread_time if threads == 1 else perf_counter
    sides = [each for each in (case.ours, case.theirs) if each is not None]
    sessions = [_open(each, case.inputs(1), copies, folder, threads) for each in sides]
    times: list[tuple[float, ...]] = []
    for rows in _ROWS:
        inputs = case.inputs(rows)
        output = np.empty((rows, case.columns), np.float32)
        calls = [partial(one.run_with_iobinding, _binding(one, inputs, output)) for one in sessions]
        *seconds, dots, read = _minima([*calls, *peaks.calls], clock)
        peaks.add([dots, read])
        experts = len(np.unique(inputs.get("ids", 0)))
        times.append((rows, case.bytes * experts, *(each / copies for each in seconds)))
    operations, bandwidth = peaks.rates()
    lines = []
    for count, touched, ours, *theirs in times:
        arithmetic, memory = count * case.operations / operations, touched / bandwidth
        limit, nearer = (memory, "memory") if memory > arithmetic else (arithmetic, "arithmetic")
        other = [f"{theirs[0] * 1e6:.0f}", ratio_text(theirs[0], ours)] if theirs else [MISSING, MISSING]
        texts = (f"{count}", f"{ours * 1e6:.0f}", *other, f"{limit * 1e6:.0f} ({nearer})", ratio_text(ours, limit))
        lines.append(texts)
    columns = ("rows", "us", "ONNX Runtime, us", "ONNX Runtime / lopa", "limit, us", "lopa / limit")
    title = f"{case.name}, threads {threads}: {operations / 1e9:.0f} GOP/s, {bandwidth / 1e9:.1f} GB/s"
    return Table(title, columns, tuple(lines))


@click.command(help="Measure the CPU's kernels beside ONNX Runtime's and the machine's limits.")
@click.option("--threads", default=1, show_default=True)
@click.option("--only", default="", help="Measure only cases whose name contains this.")
@click.option("--output", type=click.Path(path_type=Path), help="Folder for the tables.")
def main(threads: int, only: str, output: Path | None) -> None:
    """Print one table per case."""
    tables = []
    with tempfile.TemporaryDirectory() as work, ThreadPoolExecutor(threads) as pool:
        peaks = _Peaks(threads, pool, Path(work))
        for case in _cases():
            if only not in case.name:
                continue
            with tempfile.TemporaryDirectory() as folder:
                tables.append(_table(case, peaks, threads, Path(folder)))
            print(markdown_from_table(tables[-1]), flush=True)
    show_report([] if output is None else tables, output=output, name="kernels", record=[vars(each) for each in tables])
