"""Expert layers of the kernels: every instruction set of this processor against float64."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import numpy.typing as npt
import onnx
import onnxruntime as ort
import pytest
import torch
from onnx import TensorProto, numpy_helper
from tests.runtime.cpu_kernels.kernel_sessions import (
    NEEDS_KERNELS,
    available_sets,
    model_of,
    open_model,
    packed,
    run,
    session,
)
from torch.nn import functional

from lopa.runtime.contract import Float32
from lopa.runtime.cpu_kernels.kernel_library import BLOCK, KernelLibrary

pytestmark = NEEDS_KERNELS

Float64 = npt.NDArray[np.float64]
INPUTS = {"rows": TensorProto.FLOAT, "ids": TensorProto.INT64, "weights": TensorProto.FLOAT}
INT4 = ("ExpertsInt4", "ExpertsInt4HalfScales")
OPERATORS = (*INT4, "ExpertsInt8", "ExpertsFloat", "ExpertsFloat16")
ACCURACY = 2e-6
"""Allowed difference of a float32 product, relative to the product of the magnitudes."""


@dataclass(frozen=True, eq=False)
class Stack:
    """One matrix of every expert."""

    name: str
    numbers: npt.NDArray[np.generic]
    """Numbers [experts, inputs, columns]."""
    scales: npt.NDArray[np.generic] | None = None
    int4: bool = False

    def initializers(self) -> list[onnx.TensorProto]:
        """Return the inputs of the operator."""
        if self.scales is None:
            return [numpy_helper.from_array(self.numbers, self.name)]
        numbers = self.numbers.astype(np.int8)
        matrix = packed(numbers, self.name) if self.int4 else numpy_helper.from_array(numbers, self.name)
        return [matrix, numpy_helper.from_array(self.scales, f"{self.name}_scales")]

    def values(self, expert: int) -> Float64:
        """Return the matrix of an expert."""
        numbers = self.numbers[expert].astype(np.float64)
        if self.scales is None:
            return numbers
        scales = self.scales[expert].astype(np.float64)
        return numbers * (np.repeat(scales, BLOCK, axis=0) if self.int4 else scales)

    def groups(self, row: Float64) -> Float64:
        """Return the numbers of a row that are rounded with one scale: [groups, numbers]."""
        return row.reshape(-1, BLOCK) if self.int4 else row[None]


@dataclass(frozen=True, eq=False)
class Layer:
    """An expert layer."""

    operator: str
    gate: Stack
    up: Stack
    down: Stack
    gelu: bool = False

    def initializers(self) -> list[onnx.TensorProto]:
        """Return the inputs of the operator after the first three."""
        return [each for stack in (self.gate, self.up, self.down) for each in stack.initializers()]

    def open(self, threads: int = 1) -> ort.InferenceSession:
        """Return a session of the layer."""
        attributes = {"gelu": 1} if self.gelu else {}
        return session(self.operator, INPUTS, self.initializers(), threads=threads, **attributes)

    def activation(self, gate: Float64) -> Float64:
        """Return silu or gelu, whose slopes are at most 1.13, as torch computes them in float64."""
        numbers = torch.from_numpy(gate)
        found = functional.gelu(numbers, approximate="tanh") if self.gelu else functional.silu(numbers)
        return np.asarray(found)


@dataclass(frozen=True, eq=False)
class Batch:
    """Inputs of a layer."""

    rows: Float32
    ids: npt.NDArray[np.int64]
    weights: Float32

    def __getitem__(self, rows: slice) -> "Batch":
        return Batch(self.rows[rows], self.ids[rows], self.weights[rows])

    def run(self, one: ort.InferenceSession) -> Float32:
        """Return the output of the layer."""
        return run(one, rows=self.rows, ids=self.ids, weights=self.weights)


def random_layer(operator: str, hidden: int, inner: int, experts: int, seed: int = 0) -> Layer:
    rng = np.random.default_rng(seed)

    def stack(name: str, inputs: int, columns: int) -> Stack:
        shape = (experts, inputs, columns)
        if operator in INT4:
            scales = rng.random((experts, inputs // BLOCK, columns)) * 0.4 / np.sqrt(inputs)
            stored = scales.astype(np.float16 if operator.endswith("HalfScales") else np.float32)
            return Stack(name, rng.integers(-8, 8, shape), stored, int4=True)
        if operator == "ExpertsInt8":
            scales = rng.random((experts, columns)) * 0.03 / np.sqrt(inputs)
            return Stack(name, rng.integers(-127, 128, shape), scales.astype(np.float32))
        numbers = rng.standard_normal(shape) / np.sqrt(inputs)
        return Stack(name, numbers.astype(np.float32 if operator == "ExpertsFloat" else np.float16))

    return Layer(operator, stack("gate", hidden, inner), stack("up", hidden, inner), stack("down", inner, hidden))


def random_batch(layer: Layer, rows: int, choices: int, seed: int = 1) -> Batch:
    """Return a batch with rows of different magnitudes. Rows may choose an expert twice."""
    rng = np.random.default_rng(seed)
    experts, hidden, _ = layer.gate.numbers.shape
    x = rng.standard_normal((rows, hidden)) * rng.choice([1e-6, 0.1, 1, 5], (rows, 1))
    ids = rng.integers(0, experts, (rows, choices))
    return Batch(x.astype(np.float32), ids, rng.standard_normal((rows, choices)).astype(np.float32))


def product(stack: Stack, expert: int, row: Float64, error: Float64, *, rounds: bool) -> tuple[Float64, Float64]:
    """Return a row times the matrix of an expert, and a bound for the operator's difference from it.

    `error` is the bound for each number of `row`. With `rounds`, the row is rounded as the operator does it. The bound
    then counts one step for numbers so near to a tie that the operator may round them to the other side.
    """
    matrix = stack.values(expert)
    if stack.scales is not None:
        groups = stack.groups(row)
        steps = np.broadcast_to(np.maximum(np.abs(groups).max(axis=1, keepdims=True), 1e-30) / 127, groups.shape)
        errors = stack.groups(error)
        scaling = errors.max(axis=1, keepdims=True)
        if rounds:
            exact = groups / steps
            near = np.abs(exact - np.floor(exact) - 0.5) * steps <= errors + scaling + 1e-6 * np.abs(groups)
            row, error = (np.rint(exact) * steps).reshape(-1), (scaling + near * steps).reshape(-1)
        else:
            error = (errors + scaling + 0.501 * steps).reshape(-1)
    return row @ matrix, error @ np.abs(matrix) + ACCURACY * (np.abs(row) + error) @ np.abs(matrix)


def expected(layer: Layer, batch: Batch, *, rounds: bool = True) -> tuple[Float64, Float64]:
    """Return the result of the layer in float64, and a bound for the operator's difference from it."""
    result, bound = np.zeros(batch.rows.shape), np.zeros(batch.rows.shape)
    for r, (row, ids, weights) in enumerate(zip(batch.rows.astype(np.float64), batch.ids, batch.weights, strict=True)):
        for expert, weight in zip(ids, weights.astype(np.float64), strict=True):
            gate, gate_error = product(layer.gate, expert, row, np.zeros_like(row), rounds=rounds)
            up, up_error = product(layer.up, expert, row, np.zeros_like(row), rounds=rounds)
            active = layer.activation(gate)
            inner, active_error = active * up, 1.13 * gate_error + 1e-6 * np.abs(active)
            inner_error = active_error * (np.abs(up) + up_error) + np.abs(active) * up_error + 1e-6 * np.abs(inner)
            down, down_error = product(layer.down, expert, inner, inner_error, rounds=rounds)
            result[r] += weight * down
            bound[r] += np.abs(weight) * (down_error + 1e-6 * np.abs(down))
    return result, bound


SIZES = [(1, 32, 32, 1, 1), (5, 64, 160, 4, 2), (150, 96, 416, 2, 2), (2, 1184, 96, 5, 3)]
"""Rows, hidden, inner, experts, choices: parts of a tile, several strips, more rows of an expert than one pass."""
ODD_SIZES = [(1, 1, 1, 1, 1), (2, 33, 5, 3, 2), (9, 250, 131, 4, 3)]
CASES = [(operator, *sizes) for operator in OPERATORS for sizes in (SIZES if operator in INT4 else SIZES + ODD_SIZES)]


@pytest.mark.parametrize("gelu", [False, True])
@pytest.mark.parametrize(("operator", "rows", "hidden", "inner", "experts", "choices"), CASES)
def test_layers_round_rows_as_documented_and_are_exact_otherwise(
    instruction_set: str,
    operator: str,
    rows: int,
    hidden: int,
    inner: int,
    experts: int,
    choices: int,
    gelu: bool,
) -> None:
    layer = replace(random_layer(operator, hidden, inner, experts), gelu=gelu)
    batch = random_batch(layer, rows, choices)
    result = batch.run(layer.open())
    exact, bound = expected(layer, batch)
    assert (np.abs(result - exact) <= bound + 1e-30).all()
    if operator in INT4:  # Without rounding, each number of a block is off by at most half a step.
        exact, bound = expected(layer, batch, rounds=False)
        assert (np.abs(result - exact) <= bound + 1e-30).all()


@pytest.mark.parametrize("operator", OPERATORS)
def test_the_bounds_are_small(operator: str) -> None:
    """The test above would also accept wrong results if its bounds were as large as the results."""
    layer = random_layer(operator, 288, 160, 3)
    exact, bound = expected(layer, random_batch(layer, 40, 3))
    assert np.median(bound / np.abs(exact).max(axis=1, keepdims=True)) < (
        5e-3 if layer.down.scales is not None else 1e-3
    )


@pytest.mark.parametrize("operator", OPERATORS)
def test_results_depend_on_the_row_alone(library: KernelLibrary, operator: str) -> None:
    layer = random_layer(operator, 224, 160, 7)
    batch = random_batch(layer, 133, 3)
    reference = batch.run(layer.open())
    for name in available_sets():
        library.select(name)
        for threads in (1, 2, 3):
            one = layer.open(threads)
            assert (batch.run(one) == reference).all()
            for start, end in ((7, 10), (131, 133), *((0, rows) for rows in range(1, 40, 2))):
                assert (batch[start:end].run(one) == reference[start:end]).all()
            assert (batch[::-1].run(one)[::-1] == reference).all()


@pytest.mark.parametrize("operator", OPERATORS)
def test_large_batches_are_computed_in_parts(library: KernelLibrary, operator: str) -> None:
    layer = random_layer(operator, 4096, 32, 2)
    batch = random_batch(layer, 300, 16)
    one = layer.open(2)
    result = batch.run(one)
    for row in (0, 99, 100, 127, 128, 199, 200, 299):
        assert (batch[row : row + 1].run(one) == result[row : row + 1]).all()


@pytest.mark.parametrize("operator", OPERATORS)
def test_leading_dimensions_are_kept(operator: str) -> None:
    layer = random_layer(operator, 64, 32, 4)
    batch, one = random_batch(layer, 6, 2), layer.open()
    shaped = Batch(batch.rows.reshape(2, 3, 64), batch.ids.reshape(2, 3, 2), batch.weights.reshape(2, 3, 2))
    assert (shaped.run(one) == batch.run(one).reshape(2, 3, 64)).all()
    assert batch[:0].run(one).shape == (0, 64)


@pytest.mark.parametrize("gelu", [False, True])
@pytest.mark.parametrize(
    "gate", [-3.0, -6.0, -87.0, -89.0, -1e30, -3e38, -np.inf, 0.0, 4.0, 1e30, 3e38, np.inf, np.nan]
)
def test_activations_of_any_gate_are_those_of_torch(instruction_set: str, gate: float, gelu: bool) -> None:
    ones = np.ones((1, 1, 33), np.float32)
    layer = Layer(
        "ExpertsFloat",
        Stack("gate", ones * np.float32(gate)),
        Stack("up", ones),
        Stack("down", ones.transpose(0, 2, 1) / 33),
        gelu=gelu,
    )
    batch = Batch(np.ones((2, 1), np.float32), np.zeros((2, 1), np.int64), np.ones((2, 1), np.float32))
    activated = np.broadcast_to(layer.activation(np.array(gate)), (2, 1))
    np.testing.assert_allclose(batch.run(layer.open()), activated, rtol=1e-4, atol=1e-15 if gelu else 1e-36)


@pytest.mark.parametrize("operator", OPERATORS)
@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("gelu", [False, True])
def test_numbers_that_are_not_finite_stay_in_their_row(
    instruction_set: str,
    operator: str,
    value: float,
    gelu: bool,
) -> None:
    """They stand at every place. Zeros stay zero."""
    layer = replace(random_layer(operator, 32, 64, 2), gelu=gelu)
    batch = random_batch(layer, 34, 1)
    expected = batch.run(layer.open())[32]
    batch.rows[np.diag_indices(32)], batch.rows[33] = value, 0
    result = batch.run(layer.open())
    assert not np.isfinite(result[:32]).any()
    assert (result[32] == expected).all()
    assert (result[33] == 0).all()


def test_int8_sums_never_overflow() -> None:
    layer = random_layer("ExpertsInt8", 131072, 1, 1)
    with pytest.raises(Exception, match=r"ExpertsInt8: gate has shape .* expected at most 131071"):
        random_batch(layer, 1, 1).run(layer.open())


@pytest.mark.parametrize(("wrong", "row"), [(-1, 0), (4, 2), (2**40, 4), (-(2**63), 4)])
@pytest.mark.parametrize("operator", OPERATORS)
def test_ids_that_are_no_experts_are_errors(operator: str, wrong: int, row: int) -> None:
    layer = random_layer(operator, 32, 32, 4)
    batch, one = random_batch(layer, 5, 3), layer.open()
    batch.ids[row, 1] = wrong
    with pytest.raises(Exception, match=f"{operator}: id {wrong} of row {row} is not one of 4 experts"):
        batch.run(one)
    batch.ids[row, 1] = 3
    assert np.isfinite(batch.run(one)).all()


_ROWS, _IDS, _WEIGHTS = (3, 64), (3, 2), (3, 2)


@pytest.mark.parametrize(
    ("rows", "ids", "weights", "message"),
    [
        (_ROWS, (2, 2), _WEIGHTS, r"ids has shape \[2, 2\]"),
        (_ROWS, (3, 2, 1), _WEIGHTS, r"ids has shape \[3, 2, 1\]"),
        (_ROWS, (3, 0), (3, 0), r"ids has shape \[3, 0\], expected a row of at least 1 number"),
        (_ROWS, _IDS, (3, 3), r"weights has shape \[3, 3\], expected the shape of ids"),
        (_ROWS, _IDS, (6,), r"weights has shape \[6\]"),
        ((3, 32), _IDS, _WEIGHTS, r"gate has shape \[4, 64, 96\]"),
        ((64,), (2,), (3,), r"weights has shape \[3\]"),
    ],
)
@pytest.mark.parametrize("operator", OPERATORS)
def test_inputs_that_do_not_fit_are_errors(
    operator: str, rows: tuple[int, ...], ids: tuple[int, ...], weights: tuple[int, ...], message: str
) -> None:
    one = random_layer(operator, 64, 96, 4).open()
    batch = Batch(np.ones(rows, np.float32), np.zeros(ids, np.int64), np.ones(weights, np.float32))
    with pytest.raises(Exception, match=f"{operator}: {message}"):
        batch.run(one)


def _wrong_stacks(operator: str) -> Iterator[tuple[Layer, str]]:
    """Yield layers with one wrong matrix, and the error."""
    layer = random_layer(operator, 64, 96, 4)
    other = random_layer(operator, 96, 64, 4)
    fewer = random_layer(operator, 64, 96, 3)
    yield replace(layer, gate=replace(other.gate, name="gate")), r"gate has shape \[4, 96, 64\]"
    yield replace(layer, up=other.up), r"up has shape \[4, 96, 64\], expected \[4, 64, 96\]"
    yield replace(layer, up=fewer.up), r"up has shape \[3, 64, 96\], expected \[4, 64, 96\]"
    yield replace(layer, down=other.down), r"down has shape \[4, 64, 96\], expected \[4, 96, 64\]"
    yield replace(layer, down=fewer.down), r"down has shape \[3, 96, 64\]"
    flat = replace(layer.gate, numbers=layer.gate.numbers[0], scales=layer.gate.scales)
    yield replace(layer, gate=flat), r"gate has shape \[64, 96\]"
    for name in ("gate", "up", "down") if layer.gate.scales is not None else ():
        stack = getattr(layer, name)
        cut = replace(stack, scales=stack.scales[..., :-1])
        yield replace(layer, **{name: cut}), f"{name}_scales has shape"
        yield replace(layer, **{name: replace(stack, scales=stack.scales[:3])}), f"{name}_scales has shape"
        yield replace(layer, **{name: replace(stack, scales=stack.scales[0])}), f"{name}_scales has shape"


@pytest.mark.parametrize("operator", OPERATORS)
def test_matrices_that_do_not_fit_are_errors(operator: str) -> None:
    batch = random_batch(random_layer(operator, 64, 96, 4), 3, 2)
    for layer, message in _wrong_stacks(operator):
        with pytest.raises(Exception, match=f"{operator}: {message}"):
            batch.run(layer.open())


@pytest.mark.parametrize(("hidden", "inner"), [(48, 32), (32, 48)])
@pytest.mark.parametrize("operator", INT4)
def test_int4_layers_need_whole_blocks(operator: str, hidden: int, inner: int) -> None:
    layer = random_layer(operator, hidden, inner, 2)
    with pytest.raises(
        Exception, match=rf"{operator}: gate has shape \[2, {hidden}, {inner}\], expected multiples of 32"
    ):
        random_batch(layer, 3, 2).run(layer.open())


_STACK_BYTES = 2**24


@pytest.mark.parametrize(("operator", "bits"), list(zip(OPERATORS, (4, 4, 8, 32, 16), strict=True)))
def test_experts_that_no_row_chooses_are_not_read(tmp_path: Path, operator: str, bits: int) -> None:
    """The system reads up to 2 MiB around each number that is read for the first time."""
    experts = _STACK_BYTES * 8 // (bits * 128 * 128)
    layer = random_layer(operator, 128, 128, 1)
    file, model = tmp_path / "weights.bin", tmp_path / "layer.onnx"
    initializers = layer.initializers()
    with file.open("wb") as stream:
        for tensor in initializers:
            tensor.dims[0] = experts
            content = tensor.raw_data * experts
            places = {"location": file.name, "offset": str(stream.tell()), "length": str(len(content))}
            stream.write(content)
            tensor.ClearField("raw_data")
            tensor.data_location = TensorProto.EXTERNAL
            for key, value in places.items():
                tensor.external_data.add(key=key, value=value)
    model.write_bytes(model_of(operator, INPUTS, initializers).SerializeToString())
    one, size = open_model(model, 2), file.stat().st_size
    batch = random_batch(layer, 1, 2)
    result = replace(batch, ids=np.array([[2, experts // 2]])).run(one)
    assert (result == batch.run(layer.open())).all()
    assert _STACK_BYTES / experts < resident_bytes(file) < size / 2
    every = random_batch(layer, experts, 1)
    replace(every, ids=np.arange(experts)[:, None]).run(one)
    assert resident_bytes(file) > size * 0.95


def resident_bytes(file: Path) -> int:
    """Return the bytes of the file that are in this process's memory."""
    resident, found = 0, False
    for line in Path("/proc/self/smaps").read_text().splitlines():
        if "-" in line.split(" ")[0]:
            found = line.endswith(str(file))
        elif found and line.startswith("Rss:"):
            resident += int(line.split()[1]) * 1024
    return resident
