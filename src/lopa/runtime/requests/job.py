"""A checked request, and the handles that receive its answer."""

import threading
from collections.abc import Callable, Hashable
from dataclasses import dataclass, field, replace
from typing import Self

from lopa.runtime.bundle.manifest import Manifest
from lopa.runtime.contract import Int64
from lopa.runtime.decoding.branch_budget import BranchBudget
from lopa.runtime.decoding.extension import Extension, cached_prompt, constraint
from lopa.runtime.decoding.growing_holes import hole_filling
from lopa.runtime.decoding.lopa_loop import LopaLoop
from lopa.runtime.decoding.step import Step
from lopa.runtime.errors import BadInputError
from lopa.runtime.generation_config import ResolvedOptions
from lopa.runtime.options import GRAMMARS, DecodingParams
from lopa.runtime.requests.handle import RequestHandle
from lopa.runtime.requests.running_loop import RequestLoop
from lopa.runtime.scoring.scoring import Scoring
from lopa.runtime.state.branch_grammar import BranchGrammar
from lopa.runtime.state.choice_scores import EncodedChoice
from lopa.runtime.state.packed_rows import SharingTest
from lopa.runtime.text.encoded_holes import EncodedHoles


@dataclass(frozen=True, eq=False)
class Job:
    """One decode for one handle, or for several copies of a request that may be cancelled separately."""

    prompt_ids: Int64
    resolved: ResolvedOptions
    """Requested options and their values, with the number of branches, its reason and the preset."""
    budget: BranchBudget | None
    sharing: SharingTest | None
    """Rule for computing equal rows of several branches once; None to compute them separately."""
    grammar: BranchGrammar | None
    """Initial state of the grammar; None without one."""
    choices: tuple[EncodedChoice, ...] | None
    """Answers to score instead of decoding; None to decode."""
    handle: RequestHandle
    drafts: bool
    on_step: Callable[[Step], None] | None
    submitted: float
    """Time of submission on time.perf_counter's clock, like `deadline`."""
    deadline: float | None
    holes: EncodedHoles | None = None
    """Holes of the text `prompt_ids`; None for an answer behind a prompt."""
    cache_salt: str | None = None
    """Requests with different values share no stored rows."""
    copies: tuple[RequestHandle, ...] = ()
    """Handles of identical requests, which receive the same answer."""

    @property
    def params(self) -> DecodingParams:
        """Value of every option."""
        return self.resolved.params

    @property
    def unfinished(self) -> list[RequestHandle]:
        """Handles that have not ended."""
        return [handle for handle in (self.handle, *self.copies) if not handle.done]

    @property
    def done(self) -> bool:
        """True if every handle has ended."""
        return not self.unfinished

    def decode_key(self) -> Hashable:
        """Return a key that is equal for jobs that decode the same, so that one decode can serve them all.

        Jobs with random draws or an `on_step` callback are equal only to themselves. The deadlines have to be equal.
        """
        if self.params.temperature or self.on_step is not None:
            return self.handle
        grammar = tuple(getattr(self.resolved.config, name) for name in GRAMMARS)
        holes = None if self.holes is None else self.holes.key
        return self.prompt_ids.tobytes(), self.params, grammar, self.choices, holes, self.drafts, self.cache_salt

    def with_copy(self, handle: RequestHandle) -> Self:
        """Return this job with another handle."""
        return replace(self, copies=(*self.copies, handle))

    def submitted_at(self, moment: float) -> Self:
        """Return this job with its submission, and its deadline, moved to `moment`."""
        moved = None if self.deadline is None else self.deadline + moment - self.submitted
        return replace(self, submitted=moment, deadline=moved)


@dataclass(frozen=True, eq=False)
class PreparedRequest:
    """Result of `prepare` of a decoder or engine, for one call of Decoder.stream or Engine.submit.

    Its deadline counts from the preparation.
    """

    _job: Job
    _taken: threading.Lock = field(default_factory=threading.Lock, init=False, repr=False)

    @property
    def resolved(self) -> ResolvedOptions:
        """Requested options and their values, with the number of branches, its reason and the preset."""
        return self._job.resolved

    @property
    def prompt_ids(self) -> list[int]:
        """Token IDs of the prompt."""
        ids: list[int] = self._job.prompt_ids.tolist()
        return ids

    def _take(self) -> Job:
        """Return the request, once. Raises BadInputError the second time."""
        if not self._taken.acquire(blocking=False):
            raise BadInputError(
                "the prepared request was already submitted",
                expected="a new prepared request, since each is decoded once",
                remedy="call prepare again",
            )
        return self._job


def loop_of_job(job: Job, manifest: Manifest, cached: int) -> RequestLoop:
    """Return the loop of a request whose first `cached` prompt rows are in its cache."""
    if job.choices is not None:
        return Scoring(job.params, manifest, job.prompt_ids, job.choices)
    extensions: list[Extension] = [cached_prompt(cached)] if cached else []
    if job.holes is not None:
        extensions.append(hole_filling(job.holes, manifest.special_tokens.ends))
    if job.grammar is not None:
        extensions.append(constraint(job.grammar))
    if job.budget is not None:
        extensions.append(Extension(candidates=job.budget.candidates))
    return LopaLoop(job.params, manifest, job.prompt_ids, extensions)
