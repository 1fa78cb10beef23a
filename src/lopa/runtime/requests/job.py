"""A request as it was asked for, checked, and who is given its answer. Knows no session and no other request."""

import time
from collections.abc import Callable, Hashable
from dataclasses import dataclass, replace
from typing import NamedTuple, Self

from lopa.runtime.contract import Int64
from lopa.runtime.decoding.branch_budget import BranchBudget
from lopa.runtime.decoding.decoding import Pays, Step, StopReason
from lopa.runtime.generation_config import GenerationConfig
from lopa.runtime.grammar.state import GrammarState
from lopa.runtime.plan import DecodingPlan
from lopa.runtime.requests.handle import RequestHandle


class Leaving(NamedTuple):
    """The handles of a request that end now."""

    handles: list[tuple[RequestHandle, StopReason]]
    """Each with the reason."""
    everyone: bool
    """Whether no handle is left behind them."""


@dataclass(frozen=True, eq=False)
class Job:
    """One decode, answered to one handle or to several copies of it, each of which may be cancelled by itself."""

    prompt_ids: Int64
    config: GenerationConfig
    """What was requested."""
    plan: DecodingPlan
    """What that means here; everything is decoded by it."""
    budget: BranchBudget | None
    sharing: Pays | None
    """Where rows that are equal on several branches are computed once; None: nowhere."""
    grammar: GrammarState | None
    """What the answer satisfies, before its first token; None: nothing."""
    handle: RequestHandle
    drafts: bool
    on_step: Callable[[Step], None] | None
    submitted: float
    """On time.perf_counter's clock, as is `deadline`."""
    deadline: float | None
    copies: tuple[RequestHandle, ...] = ()
    """Handles beside `handle` that are given the same answer."""

    @property
    def unfinished(self) -> list[RequestHandle]:
        """The handles that have not ended."""
        return [handle for handle in (self.handle, *self.copies) if not handle.done]

    @property
    def done(self) -> bool:
        """Whether every handle has ended."""
        return not self.unfinished

    def leaving(self, reason: StopReason | None = None) -> Leaving:
        """Return the handles that end now: all of them for `reason`, or without one those that are due anyway."""
        unfinished = self.unfinished
        if reason is not None:
            return Leaving([(handle, reason) for handle in unfinished], everyone=True)
        over = self.deadline is not None and time.perf_counter() >= self.deadline
        due: list[tuple[RequestHandle, StopReason]] = [
            (handle, "cancelled" if handle.cancelled else "time_limit")
            for handle in unfinished
            if handle.cancelled or over
        ]
        return Leaving(due, everyone=len(due) == len(unfinished))

    def work(self) -> Hashable:
        """Equal for jobs of one deadline that decode the same, so that one decode can answer them all.

        Draws are a request's own, and so is what `on_step` raises: those are equal to themselves alone.
        """
        if self.plan.temperature or self.on_step is not None:
            return self.handle
        grammar = (self.config.json_schema, self.config.regex, self.config.grammar)
        return self.prompt_ids.tobytes(), self.plan, grammar, self.drafts

    def with_copy(self, handle: RequestHandle) -> Self:
        """This job, answered to `handle` too."""
        return replace(self, copies=(*self.copies, handle))

    def submitted_at(self, moment: float) -> Self:
        """This job as if it had been submitted at `moment`: its deadline moves along."""
        moved = None if self.deadline is None else self.deadline + moment - self.submitted
        return replace(self, submitted=moment, deadline=moved)
