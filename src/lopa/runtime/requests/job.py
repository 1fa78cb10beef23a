"""A checked request with the handles that receive its answer, and its preparation.

The options of a Request are resolved once, and its prompt becomes token IDs.
"""

import logging
import threading
import time
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import NamedTuple, Self

from lopa.runtime.bundle import Bundle
from lopa.runtime.bundle.costs import CostTable, costs_from_bundle, costs_name
from lopa.runtime.bundle.manifest import Manifest
from lopa.runtime.chat.answer_grammar import chat_grammar_errors
from lopa.runtime.chat.chat import Chat
from lopa.runtime.chat.prepared_chat import PLAIN, AnswerForm, prepare_chat
from lopa.runtime.checked_values import MAX_SECONDS, check_bool, check_callback, check_float
from lopa.runtime.contract import Int64
from lopa.runtime.decoding.branch_budget import BranchBudget
from lopa.runtime.decoding.candidates import missing_logits
from lopa.runtime.decoding.canvas_loop import CanvasLoop, check_canvas
from lopa.runtime.decoding.extension import Extension, cached_prompt, constraint
from lopa.runtime.decoding.growing_holes import check_growth, hole_filling
from lopa.runtime.decoding.lopa_loop import LopaLoop
from lopa.runtime.decoding.step import Step
from lopa.runtime.errors import BadInputError, FieldError, PromptTooLongError, field_errors, raise_if_from_handler
from lopa.runtime.generation_config import GenerationConfig, ResolvedOptions
from lopa.runtime.grammar.grammar_limits import GrammarLimits
from lopa.runtime.grammar.grammar_of_holes import config_of_expressions
from lopa.runtime.grammar.request_grammars import RequestGrammars
from lopa.runtime.options import GRAMMARS, DecodingParams
from lopa.runtime.options.hole_params import params_for_holes
from lopa.runtime.requests.handle import RequestHandle
from lopa.runtime.requests.request import Prompt, Request, changed_config, check_cache_salt
from lopa.runtime.requests.running_loop import RequestLoop
from lopa.runtime.row_sharing import FasterSharing, always
from lopa.runtime.scoring.requested_choices import choices_from_option
from lopa.runtime.scoring.scoring import Scoring
from lopa.runtime.state.branch import BranchGrammar
from lopa.runtime.state.choice_scores import EncodedChoice
from lopa.runtime.state.context import check_editing
from lopa.runtime.state.packed_rows import SharingTest
from lopa.runtime.text.encoded_holes import EncodedHoles, encode_lengths
from lopa.runtime.text.prompt_ids import ids_from_prompt, length_unit
from lopa.runtime.text.text_with_holes import TextWithHoles
from lopa.runtime.text.tokenizer import Tokenizer

_LOG = logging.getLogger(__name__)


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
    def max_cache_rows(self) -> int:
        """Number of rows that the request caches at most: those of its prompt and of its longest answer."""
        within = self.choices is not None or self.holes is not None
        return len(self.prompt_ids) + (0 if within else self.params.positions)

    @property
    def unfinished(self) -> list[RequestHandle]:
        """Handles that have not ended."""
        return [handle for handle in (self.handle, *self.copies) if not handle.done]

    @property
    def done(self) -> bool:
        """True if every handle has ended."""
        return self.handle.done and not self.unfinished

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
    if manifest.dimensions.canvas is not None:
        return CanvasLoop(job.params, manifest, job.prompt_ids)
    extensions: list[Extension] = [cached_prompt(cached)] if cached else []
    if job.holes is not None:
        extensions.append(hole_filling(job.holes, manifest.special_tokens.ends))
    if job.grammar is not None:
        extensions.append(constraint(job.grammar))
    if job.budget is not None:
        extensions.append(Extension(candidates=job.budget.candidates))
    return LopaLoop(job.params, manifest, job.prompt_ids, extensions)


class _Encoded(NamedTuple):
    """A prompt as IDs, with the options that it changed and the form of its answer."""

    ids: Int64
    resolved: ResolvedOptions
    choices: tuple[EncodedChoice, ...] | None = None
    holes: EncodedHoles | None = None
    form: AnswerForm = PLAIN


class RequestPreparation:
    """Makes the requests for one bundle on its devices ready. Every front end's requests pass through `job`."""

    def __init__(
        self,
        bundle: Bundle,
        tokenizer: Tokenizer,
        device: str,
        threads: int | None,
        limits: GrammarLimits | None,
        device_rows: int | None,
    ) -> None:
        self.bundle, self.tokenizer = bundle, tokenizer
        self.device = device
        """Names of the devices that share the branches, joined by commas."""
        self.device_rows = device_rows
        """Cache rows that the device had memory for when it was opened; None without a known limit."""
        self._threads = threads
        if limits is not None:
            self.grammars = RequestGrammars(bundle, tokenizer, limits)

    @cached_property
    def grammars(self) -> RequestGrammars:
        """Maker of grammar states. Without limits it is made for the first request with a grammar."""
        return RequestGrammars(self.bundle, self.tokenizer, None)

    def close(self) -> None:
        """End the helper process of grammars, if there is one."""
        if "grammars" in vars(self):
            self.grammars.close()

    def resolve(self, config: GenerationConfig) -> ResolvedOptions:
        """Return the value of every option here. Raises BadInputError for an invalid combination."""
        return self.bundle.manifest.resolve(config, self.device.split(","))

    def job(
        self,
        request: Request,
        *,
        deadline: float | None = None,
        drafts: bool = False,
        on_step: Callable[[Step], None] | None = None,
        is_wanted: Callable[[], bool] | None = None,
    ) -> Job:
        """Return the checked request; `deadline` is in seconds from now.

        Preparing its grammar stops once `is_wanted` returns False, with PreparationStoppedError, or once the deadline
        has passed, without an error. Raises as Decoder.stream does, and for an invalid deadline.
        """
        submitted = time.perf_counter()
        ids, resolved, choices, holes, form = self._encoded(request)
        params = resolved.params
        check_callback(on_step)
        due = None if deadline is None else submitted + check_float("deadline", deadline, min=0.0, max=MAX_SECONDS)
        _LOG.debug("a request with %s", params)
        grammar = None
        if params.has_grammar:
            with chat_grammar_errors(request.prompt, changed_config(request.config, {}), resolved.config.grammar):
                grammar = self.grammars.state_in_time(resolved.config, params, ids, holes, is_wanted=is_wanted, due=due)
        job = Job(
            prompt_ids=ids,
            resolved=resolved,
            budget=self._budget(params),
            sharing=self._sharing(params),
            grammar=grammar,
            choices=choices,
            handle=RequestHandle(form, len(ids)),
            drafts=check_bool("drafts", drafts),
            on_step=on_step,
            submitted=submitted,
            deadline=due,
            holes=holes,
            cache_salt=check_cache_salt(request.cache_salt),
        )
        self._check_fits(job.max_cache_rows)
        return job

    def _check_fits(self, rows: int) -> None:
        """Raise PromptTooLongError for a request whose `rows` the device could not hold even if it were alone."""
        if self.device_rows is not None and rows > self.device_rows:
            raise PromptTooLongError(
                f"a prompt and an answer of up to {rows} tokens, and a device with memory for {self.device_rows}",
                expected="a request whose cache rows fit into the device's memory",
                remedy="shorten the prompt or reduce max_new_tokens",
                operator="use a device with more memory",
            )

    def _budget(self, params: DecodingParams) -> BranchBudget | None:
        """Return the choice of the number of branches step by step, or None for a fixed number."""
        with field_errors("branches"):
            return BranchBudget(self.cost_table) if params.auto_branches else None

    def _encoded(self, request: Request) -> _Encoded:
        prompt, config, form = request.prompt, changed_config(request.config, {}), PLAIN
        if isinstance(prompt, TextWithHoles):
            return self._encoded_holes(prompt, config)
        if isinstance(prompt, Chat):
            prompt, resolved, form = prepare_chat(prompt, config, self.tokenizer, self.grammars, self.resolve)
        else:
            resolved = self.resolve(config)
        params = resolved.params
        self._check_params(params)
        choices = None
        if config.choices is not None:
            choices = choices_from_option(
                config.choices, self.tokenizer, self.bundle.manifest, special_tokens=params.special_tokens
            )
        unit = length_unit(params, self.bundle.manifest)
        ids = self._prompt_ids(prompt, replace(params, positions=unit) if request.shortens else params, choices)
        max_positions = self.bundle.manifest.dimensions.max_positions
        left = min(max_positions, self.device_rows or max_positions) - len(ids)
        if request.shortens and left < params.positions:
            resolved = self.resolve(replace(resolved.config, max_new_tokens=left // unit * unit))
        return _Encoded(ids, resolved, choices, form=form)

    def _encoded_holes(self, text: TextWithHoles, config: GenerationConfig) -> _Encoded:
        """Return a text with holes, whose options are those of one block from its first hole to its last one."""
        manifest = self.bundle.manifest
        if manifest.dimensions.canvas is not None:
            raise BadInputError(
                "holes for a model with canvases, whose rows attend to the text before them only",
                expected="a model whose rows attend to the text on both sides, e.g. LLaDA",
                remedy="ask for the text in a prompt",
            )
        if manifest.origin.adapter and config.attention != "full":
            raise BadInputError(
                "holes for a bundle with a D2F adapter, which was trained without the text behind a block",
                expected="a model whose rows attend to the text on both sides, e.g. LLaDA, or Dream without a D2F "
                "adapter",
                remedy="request attention=full by name, even if it is the default, to try the adapter anyway",
                operator="export the checkpoint without its adapter",
            )
        config = config_of_expressions(config, text)
        holes = encode_lengths(
            text,
            self.tokenizer,
            manifest,
            special_tokens=config.special_tokens,
            in_turn=config.block_size is not None,
            token_healing=not config.has_grammar,
        )
        branches = 1 if holes.grows and config.branches is None else config.branches
        resolved = self.resolve(replace(config, max_new_tokens=holes.count, branches=branches))
        params = params_for_holes(
            resolved.params, holes.holes, block_size=config.block_size, lengths=len(holes.lengths), grows=holes.grows
        )
        if holes.grows:
            check_growth(params)
        self._check_params(params)
        return _Encoded(holes.ids, replace(resolved, params=params), holes=holes)

    def _check_params(self, params: DecodingParams) -> None:
        """Raise BadInputError for options that the bundle's model does not support."""
        manifest = self.bundle.manifest
        check_canvas(params, manifest)
        if params.needs_logits and not params.has_choices and not manifest.with_logits:
            raise missing_logits(params)
        size = manifest.dimensions.vocab_size
        for name, ids in (("logit_bias", params.logit_bias), ("stop_token_ids", params.stop_token_ids)):
            token = max(map(int, ids), default=-1)
            if token >= size:
                raise FieldError(
                    name, f"{name} with the token {token}", expected=f"ids below {size}", remedy="remove this token"
                )
        if params.slides and manifest.prediction_shift:
            raise FieldError(
                "alignment",
                f"cannot use alignment 'sliding' for a bundle of architecture {manifest.architecture!r}",
                expected="a model whose rows predict their own positions",
                remedy="remove alignment, to use the bundle's own",
            )
        check_editing(params, manifest.prediction_shift)

    def _prompt_ids(self, prompt: Prompt, params: DecodingParams, choices: Sequence[EncodedChoice] | None) -> Int64:
        """Return the ids of a prompt that leaves room for the answer, or for the longest of its choices."""
        manifest = self.bundle.manifest
        if choices is None:
            return ids_from_prompt(prompt, params, self.tokenizer, manifest)
        longest = max(len(choice.token_ids) for choice in choices)
        try:
            return ids_from_prompt(prompt, replace(params, positions=longest), self.tokenizer, manifest)
        except PromptTooLongError as error:
            positions = manifest.dimensions.max_positions
            raise PromptTooLongError(
                f"the prompt and its longest choice, {longest} tokens, exceed the model's {positions} positions",
                expected="a prompt and choices that fit",
                remedy="shorten the prompt or the choices",
            ) from error

    @cached_property
    def has_costs(self) -> bool:
        """True if branches="auto" works here. A warning says why the bundle's cost table does not apply."""
        try:
            return bool(self.cost_table)
        except BadInputError as error:
            raise_if_from_handler(error)
            if (self.bundle.path / costs_name(self.device)).is_file():
                _LOG.warning("branches=auto is left out: %s", error)
            return False

    @cached_property
    def cost_table(self) -> CostTable:
        """Cost table of this bundle on this device, read on first use."""
        return costs_from_bundle(self.bundle, self.device, self._threads)

    @cached_property
    def _faster_sharing(self) -> FasterSharing:
        """Sharing rule from the device's cost table, or from the model's sizes without one."""
        try:
            table = self.cost_table
        except BadInputError as error:
            raise_if_from_handler(error)
            table = None
        return FasterSharing(self.bundle.manifest, table)

    def _sharing(self, params: DecodingParams) -> SharingTest | None:
        """Return the rule for computing equal rows of several branches once, or None to compute them separately."""
        if params.deduplicate_rows == "auto":
            return self._faster_sharing
        return always if params.deduplicate_rows == "always" else None
