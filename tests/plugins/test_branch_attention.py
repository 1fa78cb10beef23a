"""Branch attention: the kernels and their references against attention written row by row."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.plugins import kernel_calls
from tests.plugins.attention_case import Problem, random_problem
from tests.plugins.branch_attention_reference import attention_merge_reference, branch_attention_reference
from tests.plugins.conftest import Kernels
from tests.plugins.kernel_inputs import FEW, MANY, TYPES, Array

TOLERANCES = {"fp32": 2e-6, "fp16": 2e-3, "bf16": 2e-2}
"""Largest differences from float64 for normally distributed values: a few roundings of the type."""
TILES = {"COLUMNS": 32, "OWN": 16, "TILE": 64}
REQUESTS = st.lists(
    st.tuples(st.sampled_from([0, 1, 16, 31, 64, 65, 150]), st.lists(st.integers(1, 20), min_size=1, max_size=3)),
    min_size=1,
    max_size=3,
)
CASES = (
    REQUESTS,
    st.tuples(st.sampled_from([1, 2, 4, 7, 8]), st.integers(1, 2), st.sampled_from([32, 48, 64, 96, 128, 256])),
    st.sampled_from([(16, 16, 16), (32, 16, 64), (64, 32, 32)]),
    st.tuples(st.sampled_from([None, 64, 128]), st.booleans(), st.sampled_from([0.2, 0.9])),
    st.sampled_from(list(TYPES)),
    st.integers(0, 1 << 30),
)


def _attended(kernels: Kernels, problem: Problem, tiles: dict[str, int], *, programs: int, slices: int = 2) -> Array:
    n = problem.numbers
    channels = next(channels for channels in (64, 128, 256) if channels >= n["size"])
    output, scratch = problem.results()
    arguments = problem.arguments(output, scratch)
    constants = {"CHANNELS": channels, **tiles}
    *_, output, scratch = kernels(kernel_calls.run, "branch_attention", (programs, n["kv_heads"]), arguments, constants)
    if len(problem.merges):
        arguments = [scratch, problem.merges, output, n["heads"], n["kv_heads"], n["size"]]
        grid = (len(problem.merges), n["kv_heads"], slices)
        output = kernels(kernel_calls.run, "attention_merge", grid, arguments, {"CHANNELS": channels})[-1]
    return np.asarray(output)


def _assert_attended(found: Array, problem: Problem, tolerance: float) -> None:
    assert np.isnan(found[~problem.touched].astype(np.float32)).all()  # nothing else is written
    wanted = problem.wanted[problem.touched]
    np.testing.assert_allclose(found[problem.touched].astype(np.float64), wanted, rtol=0, atol=tolerance)


def _check_any(kernels: Kernels, *case: Any) -> None:
    requests, (group, kv_heads, size), (columns, own, tile), (chunk_rows, padded, seen), floats, seed = case
    problem = random_problem(
        seed,
        group=group,
        kv_heads=kv_heads,
        size=size,
        floats=floats,
        requests=requests,
        columns=64,
        chunk_rows=chunk_rows,
        padded=20 if padded else 0,
        seen=seen,
    )
    tiles = {"COLUMNS": columns, "OWN": own, "TILE": tile}
    found = _attended(kernels, problem, tiles, programs=1 + seed % len(problem.tasks), slices=1 + seed % 4)
    _assert_attended(found, problem, TOLERANCES[floats])


@FEW
@given(*CASES)
def test_any_tasks(kernels: Kernels, requests: Any, sizes: Any, tiles: Any, cache: Any, floats: str, seed: int) -> None:
    _check_any(kernels, requests, sizes, tiles, cache, floats, seed)


@pytest.mark.slow
@MANY
@given(*CASES)
def test_many_tasks(
    kernels: Kernels, requests: Any, sizes: Any, tiles: Any, cache: Any, floats: str, seed: int
) -> None:
    _check_any(kernels, requests, sizes, tiles, cache, floats, seed)


@pytest.mark.parametrize(
    ("floats", "group", "size", "requests"),
    [
        ("fp32", 7, 48, [(70, [9, 3]), (0, [5])]),  # a request without a prefix
        ("fp16", 8, 128, [(150, [20, 1, 4])]),
        ("bf16", 1, 64, [(33, [70]), (129, [2])]),  # more rows than a task holds
        ("bf16", 4, 256, [(65, [1])]),  # one row
    ],
)
def test_types_and_groups(
    kernels: Kernels, floats: str, group: int, size: int, requests: list[tuple[int, list[int]]]
) -> None:
    problem = random_problem(
        size, group=group, kv_heads=2, size=size, floats=floats, requests=requests, columns=32, chunk_rows=64
    )
    assert len(problem.merges)
    _assert_attended(_attended(kernels, problem, TILES, programs=2), problem, TOLERANCES[floats])


def _small(**changed: Any) -> Problem:
    choices: dict[str, Any] = {"group": 2, "kv_heads": 2, "size": 32, "floats": "fp32", "columns": 32}
    choices |= {"requests": [(160, [9, 9])], "chunk_rows": None}
    return random_problem(6, **(choices | changed))


def test_rows_that_see_nothing_are_zero(kernels: Kernels) -> None:
    for whole in (True, False):
        problem = _small(seen=0.0, whole=whole)
        assert (len(problem.merges) == 0) == whole
        found = _attended(kernels, problem, TILES, programs=3)
        assert problem.touched.all()
        assert not found.any()


def test_large_values_in_masked_columns(kernels: Kernels) -> None:
    problem = _small()
    hidden = ~problem.prefix_mask[:160]
    problem.past_key[:, :, hidden] *= 1e4
    problem.past_value[:, :, hidden] *= 1e4
    _assert_attended(_attended(kernels, problem, TILES, programs=2), problem, TOLERANCES["fp32"])


def test_large_scores(kernels: Kernels) -> None:
    """Use scores in the hundreds, which have errors of about 1e-5 in float32, and so do the weights."""
    problem = _small(scale=20.0)
    _assert_attended(_attended(kernels, problem, TILES, programs=2), problem, 1e-3)


def test_the_number_of_programs_changes_no_bits(kernels: Kernels) -> None:
    problem = _small()
    found = [_attended(kernels, problem, TILES, programs=n, slices=s) for n, s in ((1, 1), (2, 4), (40, 2))]
    np.testing.assert_array_equal(found[0], found[1])
    np.testing.assert_array_equal(found[0], found[2])


def test_parts_differ_from_the_whole_by_roundings(kernels: Kernels) -> None:
    """Compute the same rows in parts and at once."""
    parts, whole = _small(), _small(whole=True)
    for name in ("query", "past_key", "wanted"):
        np.testing.assert_array_equal(getattr(parts, name), getattr(whole, name))
    found = [_attended(kernels, problem, TILES, programs=2) for problem in (parts, whole)]
    np.testing.assert_allclose(*found, rtol=0, atol=2e-6)


@pytest.mark.parametrize("seed", range(3))
def test_the_references_are_attention_row_by_row(seed: int) -> None:
    problem = random_problem(
        seed,
        group=3,
        kv_heads=2,
        size=16,
        floats="fp32",
        requests=[(40, [5, 2]), (0, [3]), (17, [1])],
        columns=16,
        chunk_rows=[None, 16, 32][seed],
        padded=[0, 6, 0][seed],
        seen=[0.5, 0.1, 0.9][seed],
    )
    output, scratch = (result.astype(np.float64) for result in problem.results())
    flat = [each.reshape(-1) if isinstance(each, np.ndarray) else each for each in problem.arguments(output, scratch)]
    branch_attention_reference(*flat)
    n = problem.numbers
    attention_merge_reference(
        scratch.reshape(-1), problem.merges, output.reshape(-1), n["heads"], n["kv_heads"], n["size"]
    )
    _assert_attended(output, problem, 1e-12)
