"""Decode prompts with a bundle opened on devices."""

import logging
import time
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing
from dataclasses import replace
from functools import cached_property, partial
from itertools import islice
from pathlib import Path
from types import TracebackType
from typing import Any, Self, Unpack, overload

from lopa.runtime.bundle import Bundle
from lopa.runtime.bundle.costs import CostTable, costs_from_bundle, costs_name
from lopa.runtime.bundle.edit import edit_bundle
from lopa.runtime.bundle.manifest import Manifest
from lopa.runtime.checked_values import MAX_SECONDS, check_bool, check_callback, check_float, check_int
from lopa.runtime.contract import Int64
from lopa.runtime.contract.timeline import Timeline
from lopa.runtime.decoding.branch_budget import BranchBudget
from lopa.runtime.decoding.candidates import missing_logits
from lopa.runtime.decoding.decoding import SharingTest, Step
from lopa.runtime.decoding.growing_holes import check_growth
from lopa.runtime.devices import session_from_devices
from lopa.runtime.errors import BadInputError, EngineFailedError, PromptTooLongError, raise_if_from_handler
from lopa.runtime.files.stamp import HeldFolder
from lopa.runtime.files.untrusted_input import errors_as_bad_input
from lopa.runtime.generation_config import BranchChoice, GenerationConfig, GenerationOptions, branch_choice
from lopa.runtime.grammar.grammar_limits import GrammarLimits
from lopa.runtime.grammar.grammar_of_holes import config_of_expressions
from lopa.runtime.grammar.request_grammars import RequestGrammars
from lopa.runtime.hub.hub_bundle import folder_of_bundle
from lopa.runtime.parallel.branch_session import STALL_SECONDS
from lopa.runtime.plan import DecodingPlan
from lopa.runtime.plan.holes_plan import plan_for_holes
from lopa.runtime.requests.handle import RequestHandle
from lopa.runtime.requests.job import Job
from lopa.runtime.requests.observer import EngineObserver
from lopa.runtime.requests.pool import RequestPool
from lopa.runtime.requests.prefix_tree import PrefixTree
from lopa.runtime.requests.result import Event, GenerationResult, TextEvent
from lopa.runtime.requests.session_turns import SessionTurns, native_section
from lopa.runtime.requests.shared_prefix import PREFIX_CACHE_TOKENS
from lopa.runtime.revision import Revision, revised
from lopa.runtime.row_sharing import FasterSharing, always
from lopa.runtime.scoring.choice_scores import EncodedChoice
from lopa.runtime.scoring.requested_choices import choices_from_option
from lopa.runtime.sessions.session import Session
from lopa.runtime.sessions.typed_session import TypedSession
from lopa.runtime.signature import CheckedFolder, check_signature, trust_from_files
from lopa.runtime.state.context import check_editing
from lopa.runtime.text.chat_template import NO_KWARGS
from lopa.runtime.text.encoded_holes import EncodedHoles, encode_lengths
from lopa.runtime.text.prompt_ids import (
    Prompt,
    PromptRequest,
    check_cache_salt,
    check_prompts,
    ids_from_prompt,
    is_single_prompt,
)
from lopa.runtime.text.text_with_holes import TextWithHoles, text_with_holes
from lopa.runtime.text.tokenizer import Tokenizer

MAX_PARALLEL = 4096
"""Upper limit of requests that share a forward; each has a prefix cache."""

_LOG = logging.getLogger(__name__)


class Decoder:
    """A bundle opened on one or several devices, to decode prompts.

    Threads, streams and engines take turns, round by round. A lopa.Engine decodes the requests of many callers
    together. docs/reference/python.md has a table of what is allowed.
    """

    bundle: Bundle
    session: Session
    tokenizer: Tokenizer

    def __init__(
        self,
        bundle: Bundle,
        session: Session,
        tokenizer: Tokenizer,
        *,
        threads: int | None = None,
        grammar_limits: GrammarLimits | None = None,
    ) -> None:
        self.bundle = bundle
        self.session = session
        self.tokenizer = tokenizer
        self._threads = threads
        self._grammars = RequestGrammars(bundle, tokenizer, grammar_limits)
        self._turns = SessionTurns()
        self._held: HeldFolder | None = None
        """The folder that was checked, which the session may read until its end."""

    @classmethod
    def open(
        cls,
        path: Path | str,
        devices: Sequence[str] = ("cpu",),
        *,
        threads: int | None = None,
        device_timeout: float = STALL_SECONDS,
        timeline: Timeline | None = None,
        grammar_limits: GrammarLimits | None = None,
        defaults: Mapping[str, Any] | None = None,
        chat_template: str | None = None,
        trusted_keys: Sequence[Path | str] | None = None,
    ) -> Self:
        """Open the bundle at `path` on devices ("cpu", "cpu:0-3", "cuda:0", "numpy") that share the branches.

        `path` is a folder, or hf://ORG/NAME@REVISION on the Hugging Face Hub.

        `threads` is the number per device; None lets the device choose. If a forward takes longer than `device_timeout`
        seconds, its device is abandoned. This applies to several devices and to a device with core numbers
        (docs/how-to/devices.md). With `grammar_limits`, a helper process prepares the grammars of requests within these
        limits, as servers need (docs/how-to/structured-output.md). Without them, this process prepares grammars within
        the library's limits.

        `defaults` of decoding options and `chat_template` replace the bundle's own. Requests override them. With
        `trusted_keys`, files of public keys or root certificates in PEM, the bundle must be signed by one of them
        (`lopa-export sign`). This reads every file.

        Raises BadInputError for an invalid bundle or invalid devices, and MissingBackendError for a missing device.
        Raises CheckFailedError for a bundle that is not signed or was changed. Decoding raises DevicesLostError when
        the last device fails.
        """
        folder, held = folder_of_bundle(path), None
        with ExitStack() as named:
            checked = CheckedFolder({}, {})
            if trusted_keys is not None:
                trust, held = trust_from_files(trusted_keys), HeldFolder(folder)
                named.enter_context(held.errors_by_name())
                checked = check_signature(held.path, trust)
            opened = Bundle.from_folder(folder if held is None else held.path)
            opened = replace(opened, stamps={**opened.stamps, **checked.stamps}, signed=checked.digests)
            bundle = edit_bundle(opened, defaults=defaults, chat_template=chat_template)
            tokenizer = native_section(Tokenizer.open)(bundle)
            if chat_template is not None:
                tokenizer.check_chat_template()
            session = native_section(session_from_devices)(
                bundle, devices, threads=threads, stall_seconds=device_timeout, timeline=timeline
            )
        own = "the device's own choice of" if threads is None else threads
        _LOG.info("bundle %s on %s with %s threads", folder, session.device, own)
        bundle, tokenizer._source = replace(bundle, path=folder), str(folder)
        decoder = cls(bundle, session, tokenizer, threads=threads, grammar_limits=grammar_limits)
        decoder._held = held
        return decoder

    def config(self, base: GenerationConfig | None = None, /, **options: Unpack[GenerationOptions]) -> GenerationConfig:
        """Return a checked config with `options`, or `base` with `options` changed.

        An option of None selects a default; `plan` returns the value in effect. Raises BadInputError for unknown
        options, invalid values and invalid combinations.
        """
        config = _changed_config(base, options)
        self.plan(config)
        return config

    def plan(self, config: GenerationConfig | None = None) -> DecodingPlan:
        """Return the value of every option when this decoder decodes `config` (None: without options).

        Options without a value take the bundle's default, then the model's, then the package's. Defaults of bundle and
        model that contradict `config` are dropped. Raises BadInputError for an invalid combination.
        """
        return self.bundle.manifest.plan(_checked_config(config), self.devices)

    def options(self, config: GenerationConfig) -> Mapping[str, Any]:
        """Return every option of `config` by name with defaults filled in, or None if the strategy determines it."""
        return self.bundle.manifest.merged_options(_checked_config(config), self.devices)

    def profile_for(self, config: GenerationConfig) -> str | None:
        """Return the name of the bundle's profile that `config` uses here, or None."""
        return self.bundle.manifest.profile_for(_checked_config(config), self.devices)

    def branches_for(self, config: GenerationConfig) -> BranchChoice:
        """Return the number of branches with which this decoder decodes `config`, and the reason."""
        return branch_choice(self.options(config), self.devices)

    @native_section
    def prepare_grammars(self) -> None:
        """Read the bundle's tokens for grammars, and start the helper process if there is one.

        Otherwise the first request with a grammar does so. A large vocabulary takes seconds, during which no other
        thread runs. Raises MissingBackendError if llguidance is not installed, and BadInputError for a tokenizer that
        grammars do not support.
        """
        self._turns.check()
        self._grammars.prepare()

    @property
    def has_grammars(self) -> bool:
        """True if requests may have a grammar: llguidance is installed and supports the bundle's tokenizer."""
        return self._grammars.are_supported

    @native_section
    def check_grammar(self, config: GenerationConfig) -> None:
        """Check the grammar of `config`.

        Raises GrammarRefusedError if it does not parse or cannot end within max_new_tokens, and MissingBackendError if
        llguidance is not installed.
        """
        self._turns.check()
        self._grammars.check(config, self.plan(config))

    @overload
    def generate(  # type: ignore[overload-overlap]  # text is itself an iterable of text
        self,
        prompts: Prompt | PromptRequest,
        config: GenerationConfig | None = None,
        *,
        parallel: int = 1,
        on_step: Callable[[int, Step], None] | None = None,
        **options: Unpack[GenerationOptions],
    ) -> GenerationResult: ...

    @overload
    def generate(
        self,
        prompts: Iterable[Prompt | PromptRequest],
        config: GenerationConfig | None = None,
        *,
        parallel: int = 1,
        on_step: Callable[[int, Step], None] | None = None,
        **options: Unpack[GenerationOptions],
    ) -> list[GenerationResult]: ...

    def generate(
        self,
        prompts: Prompt | PromptRequest | Iterable[Prompt | PromptRequest],
        config: GenerationConfig | None = None,
        *,
        parallel: int = 1,
        on_step: Callable[[int, Step], None] | None = None,
        **options: Unpack[GenerationOptions],
    ) -> GenerationResult | list[GenerationResult]:
        """Decode one prompt and return its result, or several prompts and return a list of results in their order.

        A prompt is text, ids or a PromptRequest. The arguments and errors are the same as for `iter_generate`, which
        yields each result as soon as it is available.
        """
        single = is_single_prompt(prompts)
        several: Any = [prompts] if single else prompts
        results = list(self.iter_generate(several, config, parallel=parallel, on_step=on_step, **options))
        return results[0] if single else results

    def fill(
        self,
        parts: str | Iterable[Any],
        config: GenerationConfig | None = None,
        *,
        on_step: Callable[[Step], None] | None = None,
        **options: Unpack[GenerationOptions],
    ) -> GenerationResult:
        """Fill the holes of a text, which sees the text on both sides of them, and return the result.

        `parts` is a text with marks: <hole:32> is a hole of 32 tokens, <hole:4-16> one of the most confident length. Or
        `parts` are texts, lists of token IDs and Hole objects. The result's `filled_text` is the given text with its
        holes filled, and `holes` has the text of each hole.

        All holes are filled together, or in blocks of `block_size` from left to right. `stream` and `generate` take
        text_with_holes(parts) as a prompt. Raises BadInputError for invalid parts or options, and for a model that does
        not attend to the text behind a hole.
        """
        prompt = text_with_holes(parts)
        callback = None if on_step is None else lambda _, step: on_step(step)
        return self.generate(prompt, config, on_step=callback, **options)

    def revise(
        self,
        text: str,
        config: GenerationConfig | None = None,
        *,
        spans: Iterable[Sequence[int]] | None = None,
        threshold: float | None = None,
        **options: Unpack[GenerationOptions],
    ) -> Revision:
        """Decide parts of a text again, and return the revised text.

        `spans` are pairs of a start and an exclusive end in characters. With `threshold`, only tokens with a lower
        probability are decided again, those in `spans` if there are any; this takes one more forward. All of them are
        decided together, as `fill` does. Within `max_forwards` or `time_limit` the result is complete (`anytime`).
        Raises BadInputError as `fill` does, for invalid spans, and without spans and threshold.
        """
        return revised(self, text, _changed_config(config, options), spans=spans, threshold=threshold)

    def iter_generate(
        self,
        prompts: Iterable[Prompt | PromptRequest],
        config: GenerationConfig | None = None,
        *,
        parallel: int = 1,
        on_step: Callable[[int, Step], None] | None = None,
        **options: Unpack[GenerationOptions],
    ) -> Generator[GenerationResult, None, None]:
        """Decode prompts and yield the results in order, each as soon as it and all earlier ones are done.

        A PromptRequest is decoded by its own config, other prompts by `config` (None: the bundle's own) with `options`
        changed. `parallel` requests share every forward, which does not change the answers (docs/reference/python.md).
        `on_step` is called after every step with the number of the prompt, from 0, and the step. An exception from it
        ends that prompt, and the iterator raises it.

        Raises BadInputError at once for invalid options, and for one prompt instead of several. The iterator raises as
        `stream` does at the first invalid prompt, and for a `parallel` that is not from 1 to MAX_PARALLEL.
        """
        check_prompts(prompts)
        check_callback(on_step)
        self._turns.check()
        config = self.config(config, **options) if options else config
        return self._results(prompts, config, parallel, on_step)

    def outcomes(
        self,
        prompts: Iterable[Prompt | PromptRequest | BadInputError],
        config: GenerationConfig | None = None,
        *,
        parallel: int = 1,
        on_step: Callable[[int, Step], None] | None = None,
        **options: Unpack[GenerationOptions],
    ) -> Iterator[GenerationResult | BadInputError]:
        """Decode prompts like `iter_generate`, but yield a BadInputError in place of an invalid prompt.

        An error among `prompts` is yielded in its place too. If the device fails or `prompts` raises, the available
        results come first.
        """
        check_prompts(prompts)
        check_callback(on_step)
        self._turns.check()
        config = self.config(config, **options) if options else config
        parallel = check_int("parallel", parallel, min=1, max=MAX_PARALLEL)
        pool = self._pool()
        entries = enumerate(prompts)
        pending: deque[RequestHandle] = deque()
        failure: Exception | None = None
        try:
            while True:
                while pending and pending[0].done:
                    yield _outcome(pending.popleft())
                if failure is not None:
                    raise failure
                try:
                    for number, prompt in islice(entries, parallel - len(pool)):
                        callback = None if on_step is None else partial(on_step, number)
                        pending.append(self._join(pool, prompt, config, callback))
                    if not pending:
                        return
                    pool.step()
                except Exception as error:  # raised after the available results
                    failure = error
                    pool.hand_out_ended()
        finally:
            pool.close()

    def stream(
        self,
        prompt: Prompt,
        config: GenerationConfig | None = None,
        *,
        drafts: bool = False,
        on_step: Callable[[Step], None] | None = None,
        **options: Unpack[GenerationOptions],
    ) -> Generator[Event, None, None]:
        """Decode one prompt and yield events: committed text, drafts if requested, and the result last.

        `prompt` is text or ids. A beginning-of-text token is added to text if the bundle requires it. Ids are used
        unchanged. The prompt is decoded by `config` (None: the bundle's own) with `options` changed. Closing the
        iterator cancels the request. Raises BadInputError for invalid options, an empty or too long prompt, and
        branches="auto" without a cost table of this device in the bundle. Raises DecoderBusyError in a signal handler
        during a round, and DecoderClosedError.
        """
        self._turns.check()
        return self._events(self._job(prompt, config, drafts=drafts, on_step=on_step, **options))

    def stream_text(
        self,
        prompt: Prompt,
        config: GenerationConfig | None = None,
        *,
        on_step: Callable[[Step], None] | None = None,
        **options: Unpack[GenerationOptions],
    ) -> Generator[str, None, None]:
        """Decode one prompt and yield the pieces of its text as they are committed.

        The arguments and errors are the same as for `stream`.
        """
        return _texts(self.stream(prompt, config, on_step=on_step, **options))

    @native_section
    def _job(
        self,
        prompt: Prompt,
        config: GenerationConfig | None = None,
        *,
        deadline: float | None = None,
        drafts: bool = False,
        on_step: Callable[[Step], None] | None = None,
        cache_salt: str | None = None,
        shortens: bool = False,
        is_wanted: Callable[[], bool] | None = None,
        **options: Unpack[GenerationOptions],
    ) -> Job:
        """Return a checked request by `config` with `options` changed; `deadline` is in seconds from now.

        With `shortens` an answer that is too long for the prompt has what the prompt leaves.

        Preparing its grammar stops once `is_wanted` returns False, with PreparationStoppedError, or once the deadline
        has passed, without an error. Raises as `stream` does, and for an invalid deadline.
        """
        submitted = time.perf_counter()
        config = _changed_config(config, options)
        holes: EncodedHoles | None = None
        if isinstance(prompt, TextWithHoles):
            _check_both_sides(self.bundle.manifest, config)
            config = config_of_expressions(config, prompt)
            holes = encode_lengths(
                prompt,
                self.tokenizer,
                self.bundle.manifest,
                special_tokens=bool(config.special_tokens),
                in_turn=config.block_size is not None,
                heals_seams=not config.has_grammar,
            )
            branches = 1 if holes.grows and config.branches is None else config.branches
            config = _changed_config(config, {"max_new_tokens": holes.count, "branches": branches})
        plan = self.plan(config)
        if holes is not None:
            count, grows = len(holes.lengths), holes.grows
            plan = plan_for_holes(plan, holes.holes, block_size=config.block_size, lengths=count, grows=grows)
            if grows:
                check_growth(plan)
        check_callback(on_step)
        if deadline is not None:
            deadline = check_float("deadline", deadline, min=0.0, max=MAX_SECONDS)
        if plan.draws_from_logits and not plan.has_choices and not self.bundle.manifest.with_logits:
            raise missing_logits(plan)
        if plan.slides and self.bundle.manifest.prediction_shift:
            raise BadInputError(
                f"cannot use alignment 'sliding' for a bundle of architecture {self.bundle.manifest.architecture!r}",
                expected="a model whose rows predict their own positions",
                remedy="remove alignment, to use the bundle's own",
            )
        check_editing(plan, self.bundle.manifest.prediction_shift)
        choices = self._choices(config, plan)
        ids = (
            self._prompt_ids(prompt, replace(plan, positions=1) if shortens else plan, choices)
            if holes is None
            else holes.ids
        )
        left = self.bundle.manifest.dimensions.max_positions - len(ids)
        if shortens and holes is None and left < plan.positions:
            config = _changed_config(config, {"max_new_tokens": left})
            plan = self.plan(config)
        due = None if deadline is None else submitted + deadline
        _LOG.debug("a request with %s", plan)
        return Job(
            prompt_ids=ids,
            config=config,
            plan=plan,
            budget=BranchBudget(self._cost_table) if plan.auto_branches else None,
            sharing=self._sharing(plan),
            grammar=None
            if choices
            else self._grammars.state_in_time(config, plan, ids, holes, is_wanted=is_wanted, due=due),
            choices=choices,
            handle=RequestHandle(),
            drafts=check_bool("drafts", drafts),
            on_step=on_step,
            submitted=submitted,
            deadline=due,
            holes=holes,
            cache_salt=check_cache_salt(cache_salt),
        )

    def _choices(self, config: GenerationConfig, plan: DecodingPlan) -> tuple[EncodedChoice, ...] | None:
        if config.choices is None:
            return None
        return choices_from_option(
            config.choices, self.tokenizer, self.bundle.manifest, special_tokens=plan.special_tokens
        )

    def _prompt_ids(self, prompt: Prompt, plan: DecodingPlan, choices: Sequence[EncodedChoice] | None) -> Int64:
        """Return the ids of a prompt that leaves room for the answer, or for the longest of its choices."""
        manifest = self.bundle.manifest
        if choices is None:
            return ids_from_prompt(prompt, plan, self.tokenizer, manifest)
        longest = max(len(choice.token_ids) for choice in choices)
        try:
            return ids_from_prompt(prompt, replace(plan, positions=longest), self.tokenizer, manifest)
        except PromptTooLongError as error:
            positions = manifest.dimensions.max_positions
            raise PromptTooLongError(
                f"the prompt and its longest choice, {longest} tokens, exceed the model's {positions} positions",
                expected="a prompt and choices that fit",
                remedy="shorten the prompt or the choices",
            ) from error

    def _pool(self, cache_tokens: int = PREFIX_CACHE_TOKENS, observer: EngineObserver | None = None) -> RequestPool:
        """Return an empty pool on this decoder's session, with a prefix cache of up to `cache_tokens` tokens."""
        return RequestPool(
            TypedSession(self.session),
            self.bundle.manifest,
            self.tokenizer,
            PrefixTree(cache_tokens),
            observer=observer,
            turns=self._turns,
        )

    def prompt_from_messages(
        self,
        messages: Sequence[Mapping[str, Any]],
        *,
        special_tokens: bool = False,
        tools: Sequence[Mapping[str, Any]] | None = None,
        chat_template_kwargs: Mapping[str, Any] = NO_KWARGS,
    ) -> list[int]:
        """Return the ids of a chat ({"role", "content"} each) by the bundle's chat template, ready for `stream`.

        Special tokens written in a message are text, unless `special_tokens` is True. `tools` are definitions of
        functions in OpenAI's form, and `chat_template_kwargs` are further variables of the template, as in
        transformers. Raises BadInputError for messages that the template rejects, and for a template that fails.
        """
        return self.tokenizer.chat(
            messages, special_tokens=special_tokens, tools=tools, chat_template_kwargs=chat_template_kwargs
        )

    def close(self) -> None:
        """Free the session and end the helper process. Closing twice is allowed.

        If a round runs, the session is freed after it. Later rounds raise DecoderClosedError.
        """
        self._turns.end(self._free)

    def _free(self) -> None:
        self._grammars.close()
        self.session.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    @property
    def devices(self) -> list[str]:
        """Names of the devices that share the branches."""
        return self.session.device.split(",")

    @cached_property
    def has_costs(self) -> bool:
        """True if branches="auto" works here. A warning says why the bundle's cost table does not apply."""
        try:
            return bool(self._cost_table)
        except BadInputError as error:
            raise_if_from_handler(error)
            if (self.bundle.path / costs_name(self.session.device)).is_file():
                _LOG.warning("branches=auto is left out: %s", error)
            return False

    @cached_property
    def _cost_table(self) -> CostTable:
        """Cost table of this bundle on this device, read on first use."""
        return costs_from_bundle(self.bundle, self.session.device, self._threads)

    @cached_property
    def _faster_sharing(self) -> FasterSharing:
        """Sharing rule from the device's cost table, or from the model's sizes without one."""
        try:
            table = self._cost_table
        except BadInputError as error:
            raise_if_from_handler(error)
            table = None
        return FasterSharing(self.bundle.manifest, table)

    def _sharing(self, plan: DecodingPlan) -> SharingTest | None:
        """Return the rule for computing equal rows of several branches once, or None to compute them separately."""
        if plan.deduplicate_rows == "auto":
            return self._faster_sharing
        return always if plan.deduplicate_rows == "always" else None

    def _results(
        self,
        prompts: Iterable[Prompt | PromptRequest],
        config: GenerationConfig | None,
        parallel: int,
        on_step: Callable[[int, Step], None] | None,
    ) -> Generator[GenerationResult, None, None]:
        for outcome in self.outcomes(prompts, config, parallel=parallel, on_step=on_step):
            if isinstance(outcome, BadInputError):
                raise outcome
            yield outcome

    def _events(self, job: Job) -> Generator[Event, None, None]:
        """Yield the events of a request, which gets its own pool. A round runs when the next event is requested. The
        clock starts with the first round.
        """
        pool, handle, place = self._pool(cache_tokens=0), job.handle, 0
        try:
            pool.add(replace(job, submitted=time.perf_counter()))
            while not handle.done:
                try:
                    pool.step()
                except EngineFailedError:  # an ended request has its own result
                    pool.hand_out_ended()
                    if not handle.done:
                        raise
                events, place = handle.events_from(place)
                yield from events
        finally:
            pool.close()
        handle.result()  # raises the request's error

    def _join(
        self,
        pool: RequestPool,
        prompt: Prompt | PromptRequest | BadInputError,
        config: GenerationConfig | None,
        on_step: Callable[[Step], None] | None,
    ) -> RequestHandle:
        """Return the handle of a prompt that joined the pool, or that failed at once."""
        try:
            if isinstance(prompt, BadInputError):
                raise prompt
            cache_salt = None
            if isinstance(prompt, PromptRequest):
                config, cache_salt, prompt = prompt.config, prompt.cache_salt, prompt.prompt
            with errors_as_bad_input(
                "an invalid prompt", expected="text or ids, and a config", remedy="correct the prompt or its config"
            ):
                job = self._job(prompt, config, on_step=on_step, cache_salt=cache_salt)
        except BadInputError as error:
            raise_if_from_handler(error)
            handle = RequestHandle()
            handle.put_error(error)
            return handle
        pool.add(job)
        return job.handle


def _texts(events: Generator[Event, None, None]) -> Generator[str, None, None]:
    with closing(events):
        for event in events:
            if isinstance(event, TextEvent):
                yield event.text


def _checked_config(config: Any) -> GenerationConfig:
    if config is None:
        return GenerationConfig()
    if not isinstance(config, GenerationConfig):
        raise BadInputError(
            f"invalid config: a config of type {type(config).__name__}",
            expected="a GenerationConfig, or None for the bundle's own",
            remedy="make one with decoder.config(...)",
        )
    return config


def _changed_config(base: GenerationConfig | None, options: GenerationOptions) -> GenerationConfig:
    """Return `base` with `options` changed and each value checked; `plan` checks combinations."""
    config = _checked_config(base)
    return GenerationConfig.from_mapping({**config.requested(), **options}) if options else config


def _check_both_sides(manifest: Manifest, config: GenerationConfig) -> None:
    """Raise BadInputError for holes with an adapter, which was trained on earlier blocks only, unless the request sets
    the window."""
    if manifest.origin.adapter and config.window != "full":
        raise BadInputError(
            "holes for a bundle with a D2F adapter, whose rows attend to earlier blocks only",
            expected="a model whose rows attend to the text on both sides, e.g. LLaDA, or Dream without a D2F adapter",
            remedy="export the checkpoint without its adapter; window full tries the adapter anyway",
        )


def _outcome(handle: RequestHandle) -> GenerationResult | BadInputError:
    """Return the result of a request that is done, or its BadInputError. Raise other errors."""
    try:
        return handle.result()
    except BadInputError as error:
        return error
