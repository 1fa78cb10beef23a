"""Default numbers of branches depend on the kind of device only."""

from typing import Any

import pytest

from lopa.runtime import BranchChoice, GenerationConfig
from lopa.runtime.generation_config import branch_choice, merged_options


@pytest.mark.parametrize(
    ("devices", "number"),
    [
        (["cpu"], 1),
        (["cpu:0-3"], 1),
        (["numpy"], 1),
        (["cpu:0+cpu:1"], 1),
        (["cpu:0", "cpu:1"], 2),
        (["cpu:0", "cpu:1", "numpy"], 3),
        (["cuda:0"], 4),
        (["cuda:0+cuda:1"], 4),
    ],
)
def test_by_device(devices: list[str], number: int) -> None:
    found = choice(devices)
    assert found.number == number
    assert found.reason


@pytest.mark.parametrize(
    ("options", "number"),
    [
        ({"branches": 3}, 3),
        ({"branches": "auto"}, "auto"),
        ({"strategy": "d2f"}, 1),
        ({"strategy": "vanilla", "speculative": True}, 2),
        ({"strategy": "threshold", "speculative": True, "branches": 2}, 2),
        ({"reference": True}, 4),
    ],
)
def test_by_config(options: dict[str, Any], number: int | str) -> None:
    assert choice(["cpu"], **options).number == number


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"block_size": 4, "block_add_threshold": 1.0}, "blocks of 4, one at a time, leave at most 3 positions"),
        ({"block_size": 2, "block_add_threshold": 1.0}, "blocks of 2, one at a time, leave at most 1 position for"),
        ({"block_size": 1, "block_add_threshold": 1.0}, "leave no position for lookahead branches"),
        ({"sub_block": 4, "block_add_threshold": 1.0}, "sub-blocks of 4, one at a time"),
        ({"block_size": 8, "block_add_threshold": 1.0}, None),
        ({"block_size": 4}, None),  # several blocks are open
    ],
)
def test_small_blocks_have_one_branch(options: dict[str, Any], reason: str | None) -> None:
    found = choice(["cuda:0"], **options)
    assert found.number == (4 if reason is None else 1)
    assert (reason or "an accelerator") in found.reason
    assert choice(["cuda:0"], **options, branches=3).number == 3


def choice(devices: list[str], **options: Any) -> BranchChoice:
    return branch_choice(merged_options(GenerationConfig(**options)), devices)
