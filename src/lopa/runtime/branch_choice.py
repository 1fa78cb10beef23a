"""How many branches a request has that does not say, and whether their rows may be put into one window. Knows names of
devices, measures nothing.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from lopa.runtime.bundle.manifest import DecodingDefaults
from lopa.runtime.device_families import STAGE_SEPARATOR, is_on_processor
from lopa.runtime.generation_config import DEFAULT_BRANCHES, MOST_BRANCHES, GenerationConfig

LEAST_TO_LOOK_AHEAD = 8
"""Positions that may be decided at a time, below which little is left for lookaheads: a step fills one of them at
least, and each lookahead another."""


@dataclass(frozen=True)
class BranchChoice:
    """A number of branches and where it comes from, for people."""

    number: int | Literal["auto"]
    reason: str


def branch_choice(config: GenerationConfig, devices: Sequence[str]) -> BranchChoice:
    """What `config` asks for, or the default of `devices`, which share the branches.

    The same on every machine that has such devices, so that an answer does not depend on how busy one of them is.
    """
    if config.lossless:
        return _choice_of_guesses(config, devices)
    if not config.traits.looks_ahead:
        return BranchChoice(1, f"{config.strategy} does not look ahead")
    if config.branches == "auto":
        return BranchChoice("auto", "chosen step by step from the cost table of this device")
    if config.branches is not None:
        return BranchChoice(config.branches, "as asked for")
    if config.traits.branches is not None:
        return BranchChoice(config.traits.branches, f"{config.strategy} looks ahead where branches are asked for")
    if config.published:
        return BranchChoice(DEFAULT_BRANCHES, "the published behaviour")
    little = reason_against_lookahead(config)
    if little is not None:
        return BranchChoice(1, little)
    if not all(map(is_on_processor, devices)):
        return BranchChoice(DEFAULT_BRANCHES, "an accelerator verifies several branches in about the time of one")
    if len(devices) > 1:
        return BranchChoice(min(len(devices), MOST_BRANCHES), "one for each CPU device, which verify them side by side")
    return BranchChoice(
        1, "on a CPU a forward with more branches costs more than it brings (docs/decoding.md, Branches that pay)"
    )


def _choice_of_guesses(config: GenerationConfig, devices: Sequence[str]) -> BranchChoice:
    """Of a lossless decode."""
    if config.branches is not None:
        return BranchChoice(config.branches, "as asked for")
    if not all(map(is_on_processor, devices)):
        return BranchChoice(DEFAULT_BRANCHES, "lossless: guesses of the next three steps")
    if len(devices) > 1:
        return BranchChoice(min(len(devices), MOST_BRANCHES), "lossless: one for each CPU device")
    return BranchChoice(2, "lossless: on a CPU more than one guess costs more than it brings")


def reason_against_lookahead(options: GenerationConfig | DecodingDefaults) -> str | None:
    """Why lookahead branches find next to nothing to do with these blocks, if so: in one sentence, for people."""
    size = options.block_size if options.sub_block is None else options.sub_block
    if options.block_add_threshold < 1 or size >= LEAST_TO_LOOK_AHEAD:
        return None
    what = "blocks" if options.sub_block is None else "sub-blocks"
    left = f"at most {size - 1} position{'' if size == 2 else 's'}" if size > 1 else "nothing"
    return f"{what} of {size}, one at a time, leave {left} to look ahead at"


def may_share_rows(devices: Sequence[str]) -> bool:
    """Whether rows that are equal on several branches may be computed once where a request does not say.

    Not where devices or stages share the branches, nor where shapes are planned for: one window is one share, and
    longer than a plan's.
    """
    return len(devices) == 1 and STAGE_SEPARATOR not in devices[0] and is_on_processor(devices[0])
