"""Operations and bytes of a side's forward, and the choice to open sides one by one."""

from pathlib import Path

import pytest
from tests.tools.miniature import MINIATURE
from tools.checkpoint.likeness import LIKENESSES
from tools.checkpoint.make import checkpoint_from_likeness
from tools.peers.opening_plan import ONE_BY_ONE, TOGETHER, plan_of_openings
from tools.peers.side_work import work_of_side
from tools.peers.sides import BASELINE, SIDES, sides_of_large_models

from lopa.bench.forward.work import ForwardShape, work_of_forward
from lopa.export.bundle_from_checkpoint import bundle_from_checkpoint
from lopa.runtime.bundle import Bundle

BY_NAME = {side.name: side for side in SIDES}
SHAPE = ForwardShape(branches=1, window=16, prefix=40, wanted=16)


def test_operations_equal_those_of_the_benchmarks(tmp_path: Path) -> None:
    checkpoint_from_likeness(MINIATURE, tmp_path / "checkpoint")
    bundle_from_checkpoint(tmp_path / "checkpoint", tmp_path / "bundle")
    shape = ForwardShape(branches=3, window=16, prefix=40, wanted=16)
    expected = work_of_forward(Bundle.open(tmp_path / "bundle").manifest, shape)
    assert work_of_side(BASELINE, MINIATURE.dimensions, shape).operations == expected.float32 + expected.int8


def test_a_side_without_a_cache_computes_the_prefix_in_every_forward() -> None:
    sizes = MINIATURE.dimensions
    whole = work_of_side(BY_NAME["llama.cpp Q4_0, dream without cache"], sizes, SHAPE)
    same_rows = ForwardShape(branches=1, window=56, prefix=0, wanted=56)
    assert whole.operations == work_of_side(BASELINE, sizes, same_rows).operations


def test_bytes_depend_on_the_form() -> None:
    found = {
        name: work_of_side(side, LIKENESSES["dream-7b"].dimensions, SHAPE).matrix_bytes
        for name, side in BY_NAME.items()
    }
    weights = found["ours int8"]
    assert weights == 7_070_285_824
    assert found["ours int4 packed"] == found["ours int4 mapped"] == 0.625 * weights
    assert found["torch eager float32"] == found["llama.cpp F32"] == 4 * weights
    assert found["llama.cpp Q8_0"] == 34 / 32 * weights
    assert found["ours int4"] is None  # LOPA_WEIGHTS=auto chooses


@pytest.mark.parametrize(
    ("like", "free", "expected"),
    [
        ("dream-0.5b", 22 << 30, TOGETHER),
        ("dream-7b", 22 << 30, ONE_BY_ONE),
        ("dream-7b", 64 << 30, TOGETHER),
        ("dream-0.5b", 2 << 30, ONE_BY_ONE),
        ("dream-7b", None, TOGETHER),
    ],
)
def test_sides_are_opened_together_if_two_fit(like: str, free: int | None, expected: object) -> None:
    assert plan_of_openings(None, LIKENESSES[like].dimensions, free) == expected
    assert plan_of_openings("together", LIKENESSES[like].dimensions, 0) == TOGETHER
    assert plan_of_openings("one-by-one", LIKENESSES[like].dimensions, None) == ONE_BY_ONE


def test_large_models_have_every_form_of_integers_once() -> None:
    names = [side.name for side in sides_of_large_models()]
    assert {"ours int4 mapped", "ours int4 packed", "ours int8"} <= set(names)
    assert {side.precision for side in map(BY_NAME.get, names) if side} == {"int4", "int8"}
    assert "ours int4" not in names
