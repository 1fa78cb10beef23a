"""Experts: the kernels against a row-by-row reference in float64, and that against torch."""

from itertools import product
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tests.plugins import kernel_calls
from tests.plugins.conftest import Kernels
from tests.plugins.experts_reference import LARGEST, StackedMatrix, experts_reference, random_matrix
from tests.plugins.kernel_inputs import FEW, TYPES, UNITS, Array, normal, poison

KINDS = ("float", "int4", "int8", "fp8")
TILE = 16
Case = tuple[Array, Array, Array, list[StackedMatrix]]
"""Rows, ids, weights, and the matrices gate, up and down."""


def random_case(kind: str, floats: str, experts: int, sizes: tuple[int, int], ids: Array) -> Case:
    rng = np.random.default_rng(len(ids))
    hidden, size = sizes
    rows, weights = normal(rng, (len(ids), hidden), floats), rng.uniform(0, 1, ids.shape).astype(np.float32)
    shapes = [(hidden, size), (hidden, size), (size, hidden)]
    return rows, ids, weights, [random_matrix(rng, kind, floats, experts, *shape) for shape in shapes]


def random_ids(experts: int, count: int, per_row: int) -> Array:
    rng = np.random.default_rng(count)
    return np.argsort(rng.random((count, experts)), -1)[:, :per_row].astype(np.int64)


def tasks_and_order(kernels: Kernels, ids: Array, experts: int) -> list[Array]:
    bins, pairs = 1 << (experts - 1).bit_length(), ids.size
    given: list[Any] = [ids.reshape(-1), *(np.full(size, -1, np.int32) for size in (1 + 3 * (experts + pairs), pairs))]
    constants = {"BINS": bins, "BLOCK": 32, "TILE": TILE}
    found: list[Array] = kernels(kernel_calls.run, "expert_tasks", (experts,), [*given, pairs], constants)
    return found[1:]


def rounded(kernels: Kernels, x: Array, kind: str) -> list[Array]:
    """Return rounded rows as bytes, and their scales."""
    given = [x, np.full(x.shape, -1, np.int8), np.full(len(x), np.nan, np.float32), x.shape[1], 1 / LARGEST[kind], 1.0]
    found: list[Array] = kernels(kernel_calls.run, "round_rows", (len(x),), [*given, int(kind == "fp8")], {"BLOCK": 32})
    return found[1:]


def computed(
    kernels: Kernels,
    rows: Array,
    ids: Array,
    weights: Array,
    matrices: list[StackedMatrix],
    conversion: str = "",
    *,
    gelu: bool = False,
) -> Array:
    """Launch the kernels as operators.cpp does, with small tiles. `conversion` is the end of the kind's name."""
    (count, hidden), (_, per_row), kind = rows.shape, ids.shape, matrices[0].kind
    size, pairs, is_rounded = matrices[2].of_expert(0).shape[0], ids.size, kind in LARGEST
    tasks, order = tasks_and_order(kernels, ids, len(matrices[0].stored))
    name, programs = "_rounded" if is_rounded else {"float": "", "int4": "_int4"}[kind], (3,)
    constants = {"KIND": kind + conversion, "TILE": TILE, "COLUMNS": 32, "STEP": 32}
    gate, up, down = ([each.stored, each.scales] for each in matrices)
    inner = np.full((pairs, size), np.nan, np.float32 if is_rounded else rows.dtype)
    x = rounded(kernels, rows, kind) if is_rounded else [rows, poison("fp32")]
    arguments = [*x, *gate, *up, tasks, order, inner, per_row, hidden, size, int(gelu)]
    inner = kernels(kernel_calls.run, f"expert_gate_up{name}", programs, arguments, constants)[-1]
    x = rounded(kernels, inner, kind) if is_rounded else [inner, poison("fp32")]
    outputs = np.full((pairs, hidden), np.nan, np.float32)
    arguments = [*x, weights.reshape(-1), *down, tasks, order, outputs, size, hidden]
    outputs = kernels(kernel_calls.run, f"expert_down{name}", programs, arguments, constants)[-1]
    arguments = [outputs, np.full_like(rows, np.nan), per_row, hidden]
    return np.asarray(kernels(kernel_calls.run, "expert_sum", (count, -(-hidden // 32)), arguments, {"BLOCK": 32})[-1])


def assert_agree(kernels: Kernels, case: Case, floats: str, *, gelu: bool = False) -> None:
    """Compare with the reference. A number may be rounded to the next one, since sums have another order."""
    rows, ids, weights, matrices = case
    wanted = experts_reference(rows, ids, weights, *matrices, gelu=gelu).astype(np.float64)
    units = 1 << 12 if floats == "fp32" and matrices[0].kind in LARGEST else 8
    allowed = units * UNITS[floats] * np.abs(wanted).max(-1, keepdims=True)
    assert (np.abs(computed(kernels, *case, gelu=gelu).astype(np.float64) - wanted) <= allowed).all()


OFTEN = {*(("float", floats) for floats in TYPES), ("int4", "fp16"), ("int8", "bf16"), ("fp8", "fp32")}
"""Kinds of matrices and types of rows. The other pairs are slow tests."""


@pytest.mark.parametrize(
    ("kind", "floats"),
    [pytest.param(*each, marks=[] if each in OFTEN else pytest.mark.slow) for each in product(KINDS, TYPES)],
)
def test_types_of_rows_and_matrices(kernels: Kernels, floats: str, kind: str) -> None:
    """Parts of tiles are beyond the matrices. An expert has several tasks, others one. Those in fp16 have gelu."""
    sizes = (96, 64) if kind == "int4" else (48, 80)
    assert_agree(kernels, random_case(kind, floats, 3, sizes, random_ids(3, 30, 2)), floats, gelu=floats == "fp16")


@pytest.mark.parametrize(
    ("experts", "ids"),
    [
        (256, random_ids(256, 1, 8)),
        (64, random_ids(64, 6, 8)),
        pytest.param(256, random_ids(256, 6, 8), marks=pytest.mark.slow),
        (4, np.full((37, 1), 2)),
        (1, np.zeros((17, 1), np.int64)),
    ],
    ids=["one row", "few rows of 64 experts", "few rows of 256 experts", "all rows on one expert", "one expert"],
)
@pytest.mark.parametrize("kind", ["float", "fp8"])
def test_routes(kernels: Kernels, kind: str, experts: int, ids: Array) -> None:
    assert_agree(kernels, random_case(kind, "fp32", experts, (32, 32), ids), "fp32")


@FEW
@given(
    experts=st.integers(1, 40),
    count=st.integers(1, 90),
    per_row=st.integers(1, 5),
    kind=st.sampled_from(["float", "int4"]),
)
def test_random_sizes(kernels: Kernels, experts: int, count: int, per_row: int, kind: str) -> None:
    ids = random_ids(max(experts, per_row), count, per_row)
    assert_agree(kernels, random_case(kind, "fp32", max(experts, per_row), (64, 32), ids), "fp32")


@pytest.mark.parametrize("pairs", [1, 31, 32, 33, 200])
def test_pairs_are_sorted_by_expert(kernels: Kernels, pairs: int) -> None:
    """Pairs of an expert keep their order. Ids that no expert has are left out, also below BINS, which is 8."""
    ids = np.random.default_rng(pairs).integers(-1, 6, pairs) * 3
    tasks, order = tasks_and_order(kernels, ids, 5)
    chosen = [pair for pair in np.argsort(ids, kind="stable").tolist() if 0 <= ids[pair] < 5]
    assert order.tolist() == chosen + [-1] * (pairs - len(chosen))
    places = range(0)
    for expert, first, count in tasks[1:].reshape(-1, 3)[: tasks[0]].tolist():
        assert 0 < count <= TILE
        assert first == places.stop
        places = range(first, first + count)
        assert {ids[pair] for pair in order[first : places.stop]} == {expert}
    assert places.stop == len(chosen)
    assert tasks[0] == sum(-(-np.count_nonzero(ids == expert) // TILE) for expert in range(5))
    assert set(tasks[1 + 3 * tasks[0] :]) == {-1}


@pytest.mark.parametrize("kind", KINDS)
def test_a_row_does_not_depend_on_others(kernels: Kernels, kind: str) -> None:
    rows, ids, weights, matrices = random_case(kind, "fp16", 3, (64, 32), random_ids(3, 25, 2))
    all_rows = computed(kernels, rows, ids, weights, matrices)
    some = np.array([20, 3, 11])
    np.testing.assert_array_equal(computed(kernels, rows[some], ids[some], weights[some], matrices), all_rows[some])


def test_e4m3_without_its_conversion(kernels: Kernels) -> None:
    """Both kinds give the same bits. The weights have every number of the type."""
    rows, ids, weights, matrices = random_case("fp8", "fp32", 2, (32, 32), random_ids(2, 5, 1))
    numbers = np.resize(np.delete(np.arange(256), [127, 255]), 1024).astype(np.uint8).view(np.int8)
    matrices[0].stored[:] = numbers.reshape(32, 32)
    found = computed(kernels, rows, ids, weights, matrices)
    np.testing.assert_array_equal(computed(kernels, rows, ids, weights, matrices, "_bits"), found)


@pytest.mark.parametrize("kind", KINDS)
def test_reference_against_torch(kind: str) -> None:
    """Torch computes all rows by each expert, in float32."""
    rows, ids, weights, matrices = random_case(kind, "fp32", 5, (64, 32), random_ids(5, 9, 3))
    gate, up, down = (
        torch.from_numpy(np.stack([each.of_expert(expert) for expert in range(5)]).astype(np.float32))
        for each in matrices
    )

    def stored(x: torch.Tensor) -> torch.Tensor:
        if kind not in LARGEST:
            return x
        scale = x.abs().amax(-1, keepdim=True) / LARGEST[kind]
        return scale * ((x / scale).round() if kind == "int8" else (x / scale).to(torch.float8_e4m3fn).float())

    x = stored(torch.from_numpy(rows))
    outputs = stored(torch.nn.functional.silu(x @ gate) * (x @ up)) @ down
    wanted = torch.einsum(
        "rk,rkh->rh", torch.from_numpy(weights), outputs[torch.from_numpy(ids), torch.arange(9)[:, None]]
    )
    found = experts_reference(rows, ids, weights, *matrices)
    np.testing.assert_allclose(found, wanted.numpy(), atol=1e-5 if kind not in LARGEST else 1e-3)
