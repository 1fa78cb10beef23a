"""How many branches a request has that does not say. Knows names of devices, measures nothing."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from lopa.runtime.generation_config import DEFAULT_BRANCHES, MOST_BRANCHES, GenerationConfig

_HOST_FAMILIES = ("cpu", "numpy")


@dataclass(frozen=True)
class BranchChoice:
    """A number of branches and where it comes from, for people."""

    number: int | Literal["auto"]
    reason: str


def branch_choice(config: GenerationConfig, devices: Sequence[str]) -> BranchChoice:
    """What `config` asks for, or the default of `devices`, which share the branches.

    The same on every machine that has such devices, so that an answer does not depend on how busy one of them is.
    """
    if config.strategy != "lopa":
        return BranchChoice(1, f"only lopa looks ahead, not {config.strategy}")
    if config.branches is not None:
        return BranchChoice(config.branches, "as asked for")
    if config.published:
        return BranchChoice(DEFAULT_BRANCHES, "the published behaviour")
    if not all(_on_host(device) for device in devices):
        return BranchChoice(DEFAULT_BRANCHES, "an accelerator verifies several branches in about the time of one")
    if len(devices) > 1:
        return BranchChoice(min(len(devices), MOST_BRANCHES), "one for each CPU device, which verify them side by side")
    return BranchChoice(
        1, "on a CPU a forward with more branches costs more than it brings (docs/decoding.md, Branches that pay)"
    )


def _on_host(device: str) -> bool:
    """Whether `device`, or every stage of it, computes on the CPU."""
    return all(stage.split(":", 1)[0] in _HOST_FAMILIES for stage in device.split("+"))
