"""Default number of branches per device, and whether identical rows are deduplicated."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from lopa.runtime.device_families import STAGE_SEPARATOR, is_on_processor
from lopa.runtime.generation_config.option_checks import Options
from lopa.runtime.options import DEFAULT_BRANCHES, MAX_BRANCHES
from lopa.runtime.strategy import strategy_from_name

MIN_TO_LOOK_AHEAD = 8
"""Minimum number of positions that may be unmasked at a time for lookahead branches to save time. A step unmasks at
least one of them, and each lookahead one more."""


@dataclass(frozen=True)
class BranchChoice:
    """A number of branches, and the reason for it as a phrase."""

    number: int | Literal["auto"]
    reason: str


def branch_choice(options: Options, devices: Sequence[str]) -> BranchChoice:
    """Return the number of branches that the merged `options` request, or the default of `devices`.

    `devices` share the branches. The choice depends only on their names, so an answer does not depend on the load.
    """
    strategy, requested = strategy_from_name(options["strategy"]), options["branches"]
    if options["speculative"]:
        return _speculative_choice(requested, devices)
    if not strategy.looks_ahead:
        return BranchChoice(1, f"{strategy.name} does not look ahead")
    if requested == "auto":
        return BranchChoice("auto", "chosen step by step from the cost table of this device")
    if requested is not None:
        return BranchChoice(requested, "requested")
    if strategy.default_branches is not None:
        return BranchChoice(strategy.default_branches, f"{strategy.name} looks ahead only on request")
    if options["reference"]:
        return BranchChoice(DEFAULT_BRANCHES, "default of the published implementation")
    reason = reason_against_lookahead(options["block_size"], options["sub_block"], options["block_add_threshold"])
    if reason is not None:
        return BranchChoice(1, reason)
    if not all(map(is_on_processor, devices)):
        return BranchChoice(DEFAULT_BRANCHES, "an accelerator verifies several branches in about the time of one")
    if len(devices) > 1:
        return BranchChoice(min(len(devices), MAX_BRANCHES), "one for each CPU device")
    return BranchChoice(1, "on a CPU more branches cost more time than they save (docs/how-to/choose-a-strategy.md)")


def _speculative_choice(requested: int | None, devices: Sequence[str]) -> BranchChoice:
    """Return the choice of a speculative decode."""
    if requested is not None:
        return BranchChoice(requested, "requested")
    if not all(map(is_on_processor, devices)):
        return BranchChoice(DEFAULT_BRANCHES, "speculative: drafts of the next three steps")
    if len(devices) > 1:
        return BranchChoice(min(len(devices), MAX_BRANCHES), "speculative: one for each CPU device")
    return BranchChoice(2, "speculative: on a CPU more than one draft costs more time than it saves")


def reason_against_lookahead(block_size: int, sub_block: int | None, block_add_threshold: float) -> str | None:
    """Return a sentence that explains why lookahead branches save little time with these blocks, or None if they
    may."""
    size = block_size if sub_block is None else sub_block
    if block_add_threshold < 1 or size >= MIN_TO_LOOK_AHEAD:
        return None
    what = "blocks" if sub_block is None else "sub-blocks"
    left = f"at most {size - 1} position{'' if size == 2 else 's'}" if size > 1 else "no position"
    return f"{what} of {size}, one at a time, leave {left} for lookahead branches"


def may_share_rows(devices: Sequence[str]) -> bool:
    """Return True if equal rows of several branches may be computed once by default.

    Several devices or stages need one window per branch to share the work. A shared window does not fit the shape
    buckets of compiled engines.
    """
    return len(devices) == 1 and STAGE_SEPARATOR not in devices[0] and is_on_processor(devices[0])
