"""How many branches a request has where none are requested. Knows names of devices, measures nothing."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from lopa.runtime.device_families import STAGE_SEPARATOR, is_on_processor
from lopa.runtime.generation_config.option_checks import Options
from lopa.runtime.plan import DEFAULT_BRANCHES, MAX_BRANCHES
from lopa.runtime.strategy import strategy_from_name

MIN_TO_LOOK_AHEAD = 8
"""Positions that may be unmasked at a time, below which little is left for lookaheads: a step unmasks one of them at
least, and each lookahead another."""


@dataclass(frozen=True)
class BranchChoice:
    """A number of branches and the reason for it, for people."""

    number: int | Literal["auto"]
    reason: str


def branch_choice(options: Options, devices: Sequence[str]) -> BranchChoice:
    """Return what `options` (merged ones, by name) request, or the default of `devices`, which share the branches.

    The choice is the same on every machine that has such devices, so that an answer does not depend on how busy one is.
    """
    strategy, requested = strategy_from_name(options["strategy"]), options["branches"]
    if options["speculative"]:
        return _choice_of_drafts(requested, devices)
    if not strategy.looks_ahead:
        return BranchChoice(1, f"{strategy.name} does not look ahead")
    if requested == "auto":
        return BranchChoice("auto", "chosen step by step from the cost table of this device")
    if requested is not None:
        return BranchChoice(requested, "as asked for")
    if strategy.default_branches is not None:
        return BranchChoice(strategy.default_branches, f"{strategy.name} looks ahead where branches are asked for")
    if options["reference"]:
        return BranchChoice(DEFAULT_BRANCHES, "the published behaviour")
    little = reason_against_lookahead(options["block_size"], options["sub_block"], options["block_add_threshold"])
    if little is not None:
        return BranchChoice(1, little)
    if not all(map(is_on_processor, devices)):
        return BranchChoice(DEFAULT_BRANCHES, "an accelerator verifies several branches in about the time of one")
    if len(devices) > 1:
        return BranchChoice(min(len(devices), MAX_BRANCHES), "one for each CPU device, which verify them side by side")
    return BranchChoice(
        1, "on a CPU a forward with more branches costs more than it brings (docs/how-to/choose-a-strategy.md)"
    )


def _choice_of_drafts(requested: int | None, devices: Sequence[str]) -> BranchChoice:
    """Return the choice of a speculative decode."""
    if requested is not None:
        return BranchChoice(requested, "as asked for")
    if not all(map(is_on_processor, devices)):
        return BranchChoice(DEFAULT_BRANCHES, "speculative: guesses of the next three steps")
    if len(devices) > 1:
        return BranchChoice(min(len(devices), MAX_BRANCHES), "speculative: one for each CPU device")
    return BranchChoice(2, "speculative: on a CPU more than one guess costs more than it brings")


def reason_against_lookahead(block_size: int, sub_block: int | None, block_add_threshold: float) -> str | None:
    """Return why lookahead branches find next to nothing to do with these blocks, if so: one sentence, for people."""
    size = block_size if sub_block is None else sub_block
    if block_add_threshold < 1 or size >= MIN_TO_LOOK_AHEAD:
        return None
    what = "blocks" if sub_block is None else "sub-blocks"
    left = f"at most {size - 1} position{'' if size == 2 else 's'}" if size > 1 else "nothing"
    return f"{what} of {size}, one at a time, leave {left} to look ahead at"


def may_share_rows(devices: Sequence[str]) -> bool:
    """Return whether rows that are equal on several branches may be computed once where a request does not say.

    They are not where devices or stages share the branches, nor where shapes are compiled: one window is one share, and
    longer than a shape bucket's.
    """
    return len(devices) == 1 and STAGE_SEPARATOR not in devices[0] and is_on_processor(devices[0])
