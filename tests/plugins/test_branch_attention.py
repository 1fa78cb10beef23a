"""Branch attention: the kernels and their references against attention written row by row."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.plugins import kernel_calls
from tests.plugins.attention_case import LAYERS, Problem, arguments, random_problem
from tests.plugins.conftest import Kernels
from tests.plugins.kernel_inputs import FEW, MANY, TYPES, Array
from tests.runtime.cuda_kernels import launched_kernels
from tests.runtime.cuda_kernels.launched_kernels import Launch

TOLERANCES = {"fp32": 2e-6, "fp16": 2e-3, "bf16": 2e-2}
"""Largest differences from float64 for normally distributed values: a few roundings of the type."""
TILES = {"COLUMNS": 32, "OWN": 16, "TILE": 64}
REQUESTS = st.lists(
    st.tuples(st.sampled_from([0, 1, 63, 64, 65, 150, 320]), st.lists(st.integers(1, 20), min_size=1, max_size=3)),
    min_size=1,
    max_size=3,
)
CASES = (
    REQUESTS,
    st.tuples(st.sampled_from([1, 2, 4, 7, 8]), st.integers(1, 2), st.sampled_from([32, 48, 64, 96, 128, 256, 512])),
    st.sampled_from([(16, 16, 16), (32, 16, 64), (64, 32, 32)]),
    st.tuples(st.integers(0, 70), st.sampled_from([0.2, 0.9])),
    st.sampled_from(list(TYPES)),
    st.integers(0, 1 << 30),
)


def _attended(kernels: Kernels, problem: Problem, tiles: dict[str, int], *, programs: int) -> Array:
    _, kv_heads, size = problem.sizes
    channels = next(channels for channels in (64, 128, 256, 512) if channels >= size)
    output, scratch = problem.results()
    cache = kernel_calls.View(problem.slab, problem.origin)
    given = arguments(problem, cache, output, scratch)
    constants = {"CHANNELS": channels, "CHUNK_ROWS": 64, "SLIDING": problem.is_sliding, **tiles}
    *_, output, scratch = kernels(kernel_calls.run, "branch_attention", (programs, kv_heads), given, constants)
    given, constants = [scratch, problem.work, output, *problem.sizes, int(problem.is_sliding)], {"CHANNELS": channels}
    grid = (programs, kv_heads, 4)
    return np.asarray(kernels(kernel_calls.run, "attention_merge", grid, given, constants)[-1])


def _assert_attended(found: Array, problem: Problem, tolerance: float) -> None:
    assert np.isnan(found[~problem.touched].astype(np.float32)).all()  # nothing else is written
    wanted = problem.wanted[problem.touched]
    np.testing.assert_allclose(found[problem.touched].astype(np.float64), wanted, rtol=0, atol=tolerance)


def _check_any(kernels: Kernels, *case: Any) -> None:
    requests, (group, kv_heads, size), (columns, own, tile), (padding, seen), floats, seed = case
    problem = random_problem(
        seed,
        group=group,
        kv_heads=kv_heads,
        size=size,
        floats=floats,
        requests=requests,
        columns=64,
        padding=padding,
        seen=seen,
        unused=16 * (seed % 3),
        sliding=bool(seed // 3 % 2),
    )
    tiles = {"COLUMNS": columns, "OWN": own, "TILE": tile}
    found = _attended(kernels, problem, tiles, programs=1 + seed % len(problem.tasks))
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
    ("floats", "group", "size", "requests", "canvas"),
    [
        ("fp32", 7, 48, [(70, [9, 3]), (0, [5])], {}),  # a request without a prefix
        ("fp16", 8, 128, [(150, [20, 1, 4])], {}),
        ("bf16", 1, 64, [(33, [70]), (129, [2])], {}),  # more rows than a task holds
        ("bf16", 4, 256, [(320, [1])], {}),  # one row
        ("bf16", 8, 512, [(150, [20, 4])], {"unused": 512}),
        ("fp32", 2, 256, [(320, [9]), (129, [7])], {"unused": 16, "sliding": True}),
        ("fp32", 2, 32, [(500, [40])], {"unused": 0, "sliding": True}),
    ],
)
def test_types_and_groups(
    kernels: Kernels,
    floats: str,
    group: int,
    size: int,
    requests: list[tuple[int, list[int]]],
    canvas: dict[str, Any],
) -> None:
    problem = random_problem(
        size, group=group, kv_heads=2, size=size, floats=floats, requests=requests, columns=64, **canvas
    )
    assert len(problem.merges)
    _assert_attended(_attended(kernels, problem, TILES, programs=2), problem, TOLERANCES[floats])


def _small(**changed: Any) -> Problem:
    choices: dict[str, Any] = {"group": 2, "kv_heads": 2, "size": 32, "floats": "fp32", "columns": 64}
    choices |= {"requests": [(320, [9, 4])]}
    return random_problem(6, **(choices | changed))


def test_rows_that_see_nothing_are_zero(kernels: Kernels) -> None:
    problem = _small(seen=0.0, requests=[(0, [9, 4])], padding=40)
    found = _attended(kernels, problem, TILES, programs=3)
    assert not found[problem.touched].any()


def test_columns_that_are_not_seen_change_nothing(kernels: Kernels) -> None:
    """Change the keys and values of the other layer, and of the row that no window has."""
    problem = _small()
    before = _attended(kernels, problem, TILES, programs=2)
    layers = problem.slab.reshape(len(problem.slab), LAYERS, -1)
    layers[:, 1 - problem.layer] = np.nan
    problem.key[-1] = problem.value[-1] = np.nan
    np.testing.assert_array_equal(_attended(kernels, problem, TILES, programs=2), before)


def test_large_scores(kernels: Kernels) -> None:
    """Use scores in the hundreds, which have errors of about 1e-5 in float32, and so do the weights."""
    problem = _small(scale=20.0)
    _assert_attended(_attended(kernels, problem, TILES, programs=2), problem, 1e-3)


def test_the_number_of_programs_changes_no_bits(kernels: Kernels) -> None:
    problem = _small()
    found = [_attended(kernels, problem, TILES, programs=n) for n in (1, 2, 40)]
    np.testing.assert_array_equal(found[0], found[1])
    np.testing.assert_array_equal(found[0], found[2])


def test_parts_differ_from_the_whole_by_roundings(kernels: Kernels) -> None:
    """Compute the same rows in parts and at once."""
    parts, whole = _small(), _small(whole=True)
    assert len(parts.merges)
    assert not len(whole.merges)
    for name in ("query", "slab", "wanted"):
        np.testing.assert_array_equal(getattr(parts, name), getattr(whole, name))
    found = [_attended(kernels, problem, TILES, programs=2) for problem in (parts, whole)]
    np.testing.assert_allclose(*found, rtol=0, atol=2e-6)


@pytest.mark.parametrize("seed", range(3))
def test_the_references_of_launches_are_attention_row_by_row(monkeypatch: pytest.MonkeyPatch, seed: int) -> None:
    monkeypatch.setattr(launched_kernels, "programs", lambda _: 5)
    problem = random_problem(
        seed,
        group=3,
        kv_heads=2,
        size=16,
        floats="fp32",
        requests=[(140, [5, 2]), (0, [3]), (317, [1])],
        columns=64,
        padding=[0, 1, 40][seed],
        seen=[0.5, 0.1, 0.9][seed],
        unused=[0, 16, 32][seed],
        sliding=seed == 2,
    )
    output, scratch = problem.results()
    cache = problem.slab.reshape(-1)[problem.origin :]
    for reference, values in (
        (launched_kernels.branch_attention, arguments(problem, cache, output, scratch)),
        (launched_kernels.attention_merge, [scratch, problem.work, output, *problem.sizes, int(problem.is_sliding)]),
    ):
        addresses = [each.ctypes.data if isinstance(each, np.ndarray) else each for each in values]
        reference(Launch(5, 2, 4, ("fp32", *["sliding"] * problem.is_sliding, "64"), tuple(addresses)))
    _assert_attended(output, problem, 2e-6)
