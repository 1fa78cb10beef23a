"""Decisions of published strategies, recorded or made by plain rules with other settings."""

from typing import Any

import pytest
from tests.conformance.strategy_recordings import (
    RECORDINGS,
    counted,
    decisions_of_file,
)

NUM_DECISIONS = {
    "static_b32_g64": (372, 0, 0),
    "parallel_t09_b32_g64": (92, 0, 0),
    "freedave_d4_b32_g64": (1433, 185, 0),
    "freedave_d4_b64_g64": (1513, 191, 0),
    "freedave_d8_b32_g64_dual": (2492, 171, 0),
    "freedavepp_d4_t09_b32_g64": (694, 70, 0),
    "wino_t06_b09_b32_g64": (229, 0, 257),
    "wino_t07_b05_b32_g64": (170, 0, 110),
}


@pytest.mark.parametrize("path", sorted(RECORDINGS.glob("*.jsonl.gz")), ids=lambda path: path.name.split(".")[0])
def test_recorded_decisions(path: Any) -> None:
    found = counted(decisions_of_file(path))
    assert (found["state"], found["draft"], found["remasked"]) == NUM_DECISIONS[path.name.split(".")[0]]
    assert found["different"] == 0
    assert found["tie"] <= 0.1 * found["state"]  # positions near probability 1 tie; most decisions do not
