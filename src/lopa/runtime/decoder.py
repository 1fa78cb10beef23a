"""Decode prompts with a bundle opened on devices."""

import logging
import re
import time
from collections import deque
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from contextlib import ExitStack, closing
from dataclasses import replace
from functools import partial
from itertools import islice
from pathlib import Path
from types import TracebackType
from typing import Any, Self, Unpack, overload

from lopa.runtime.bundle import Bundle
from lopa.runtime.bundle.edit import edit_bundle
from lopa.runtime.checked_values import check_callback, check_int, shown
from lopa.runtime.decoding.step import Step
from lopa.runtime.devices import devices_from_arguments, session_from_devices
from lopa.runtime.errors import (
    REQUEST_ERRORS,
    BadInputError,
    EngineFailedError,
    LopaError,
    errors_as_bad_input,
    raise_if_from_handler,
)
from lopa.runtime.files.stamp import HeldFolder
from lopa.runtime.generation_config import DEFAULT_DEVICES, GenerationConfig, GenerationOptions, ResolvedOptions
from lopa.runtime.generation_config.config import with_known_arguments
from lopa.runtime.grammar.grammar_limits import GrammarLimits
from lopa.runtime.grammar.request_grammars import RequestGrammars
from lopa.runtime.hub.hub_bundle import folder_of_bundle
from lopa.runtime.multi_device.branch_session import STALL_SECONDS
from lopa.runtime.options import DecodingParams
from lopa.runtime.requests.handle import RequestHandle
from lopa.runtime.requests.job import Job, PreparedRequest, RequestPreparation
from lopa.runtime.requests.observer import EngineObserver
from lopa.runtime.requests.pool import RequestPool
from lopa.runtime.requests.prefix_tree import PREFIX_CACHE_TOKENS, PrefixTree
from lopa.runtime.requests.request import (
    Messages,
    Prompt,
    Request,
    changed_config,
    check_nothing_beside,
    check_prompts,
    is_single_prompt,
    prompt_or_messages,
    request_among,
    request_from,
)
from lopa.runtime.requests.result import Event, GenerationResult, TextEvent
from lopa.runtime.requests.session_turns import SessionTurns, native_section
from lopa.runtime.revision import Revision, revised
from lopa.runtime.sessions.session import Session
from lopa.runtime.sessions.wrapped_session import TypedSession
from lopa.runtime.signature import CheckedFolder, check_signature, trust_from_files
from lopa.runtime.text.text_with_holes import text_with_holes
from lopa.runtime.text.tokenizer import Tokenizer

NUM_SEQS_LIMIT = 4096
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

    @with_known_arguments
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
        rows = TypedSession(session).free_rows()
        self._preparation = RequestPreparation(bundle, tokenizer, session.device, threads, grammar_limits, rows)
        self._turns = SessionTurns()
        self._held: HeldFolder | None = None
        """The folder that was checked, which the session may read until its end."""

    @classmethod
    @with_known_arguments
    def open(
        cls,
        path: Path | str,
        devices: str | Sequence[str] = DEFAULT_DEVICES,
        *,
        device: str | None = None,
        threads: int | None = None,
        device_timeout: float = STALL_SECONDS,
        grammar_limits: GrammarLimits | None = None,
        defaults: Mapping[str, Any] | None = None,
        chat_template: str | None = None,
        trusted_keys: Sequence[Path | str] | None = None,
    ) -> Self:
        """Open the bundle at `path` on devices ("cpu", "cpu:0-3", "cuda:0", "numpy") that share the branches.

        `device` names a single one.

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
        devices = devices_from_arguments(devices, device)
        is_path = isinstance(chat_template, str) and re.fullmatch(r"[^\s{]*[/.\\][^\s{]*", chat_template)
        if is_path or not isinstance(chat_template, str | None):
            raise BadInputError(
                f"chat_template is {shown(chat_template)}",
                expected="the text of a Jinja template, or None",
                remedy="read the file, e.g. Path(..).read_text()",
            )
        folder, held = folder_of_bundle(path), None
        with ExitStack() as named:
            checked = CheckedFolder({}, {})
            if trusted_keys is not None:
                trust, held = trust_from_files(trusted_keys), HeldFolder(folder)
                named.enter_context(held.errors_by_name())
                checked = check_signature(held.path, trust)
            opened = Bundle.from_folder(folder if held is None else held.path)
            opened = replace(opened, stamps={**opened.stamps, **checked.stamps}, signed=checked.digests)
            bundle = opened
            if defaults is not None or chat_template is not None:
                bundle = edit_bundle(opened, defaults=defaults, chat_template=chat_template)
            tokenizer = native_section(Tokenizer.open)(bundle)
            if chat_template is not None:
                tokenizer.check_chat_template()
            session = native_section(session_from_devices)(
                bundle, devices, threads=threads, stall_seconds=device_timeout
            )
        own = "the device's own choice of" if threads is None else threads
        _LOG.info("bundle %s on %s with %s threads", folder, session.device, own)
        bundle, tokenizer._source = replace(bundle, path=folder), str(folder)
        decoder = cls(bundle, session, tokenizer, threads=threads, grammar_limits=grammar_limits)
        decoder._held = held
        return decoder

    def config(self, base: GenerationConfig | None = None, /, **options: Unpack[GenerationOptions]) -> GenerationConfig:
        """Return a checked config with `options`, or `base` with `options` changed.

        An option of None selects a default; `params` returns the value in effect. Raises BadInputError for unknown
        options, invalid values and invalid combinations.
        """
        return self.resolve(changed_config(base, options)).config

    def params(self, config: GenerationConfig | None = None) -> DecodingParams:
        """Return the value of every option when this decoder decodes `config` (see `resolve`)."""
        return self.resolve(config).params

    def resolve(self, config: GenerationConfig | None = None) -> ResolvedOptions:
        """Return how this decoder decodes `config` (None: without options): params, branches with a reason, and preset.

        Options without a value take the bundle's default, then the model's, then the package's. Defaults of bundle and
        model that contradict `config` are dropped. Raises BadInputError for an invalid combination.
        """
        return self._preparation.resolve(changed_config(config, {}))

    @property
    def _grammars(self) -> RequestGrammars:
        return self._preparation.grammars

    @property
    def _job(self) -> Callable[..., Job]:
        return native_section(self._preparation.job)

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
    def check_grammar(self, config: GenerationConfig) -> ResolvedOptions:
        """Check the grammar of `config`, and return the resolved options.

        Raises GrammarRefusedError if it does not parse or cannot end within max_new_tokens, and MissingBackendError if
        llguidance is not installed.
        """
        self._turns.check()
        resolved = self.resolve(config)
        self._grammars.check(config, resolved.params)
        return resolved

    @overload
    def generate(  # type: ignore[overload-overlap]  # text is itself an iterable of text
        self,
        prompts: Prompt | Request,
        config: GenerationConfig | None = None,
        *,
        max_num_seqs: int = 1,
        on_step: Callable[[int, Step], None] | None = None,
        **options: Unpack[GenerationOptions],
    ) -> GenerationResult: ...

    @overload
    def generate(
        self,
        prompts: None = None,
        config: GenerationConfig | None = None,
        *,
        messages: Messages,
        on_step: Callable[[int, Step], None] | None = None,
        **options: Unpack[GenerationOptions],
    ) -> GenerationResult: ...

    @overload
    def generate(
        self,
        prompts: Iterable[Prompt | Request],
        config: GenerationConfig | None = None,
        *,
        max_num_seqs: int = 1,
        on_step: Callable[[int, Step], None] | None = None,
        **options: Unpack[GenerationOptions],
    ) -> list[GenerationResult]: ...

    @with_known_arguments
    def generate(
        self,
        prompts: Prompt | Request | Iterable[Prompt | Request] | None = None,
        config: GenerationConfig | None = None,
        *,
        messages: Messages | None = None,
        max_num_seqs: int = 1,
        on_step: Callable[[int, Step], None] | None = None,
        **options: Unpack[GenerationOptions],
    ) -> GenerationResult | list[GenerationResult]:
        """Decode one prompt and return its result, or several prompts and return a list of results in their order.

        A prompt is text, ids, a text with holes, a Chat, a list of its messages or a Request. The keyword `messages`
        is one chat. The other arguments and errors are the same as for `iter_generate`, which yields each result as
        soon as it is available. Raises BadInputError for `config` or options with one Request.
        """
        prompts = prompt_or_messages(prompts, messages)
        single = is_single_prompt(prompts)
        several: Any = [prompts] if single else prompts
        if isinstance(prompts, Request):
            request_from(prompts, config, options)
        results = list(self.iter_generate(several, config, max_num_seqs=max_num_seqs, on_step=on_step, **options))
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
        """Decode parts of a text again, and return the revised text.

        `spans` are pairs of a start and an exclusive end in characters. With `threshold`, only tokens with a lower
        probability are unmasked again, those in `spans` if there are any; this takes one more forward. All of them are
        unmasked together, as `fill` does. Within `max_forwards` or `time_limit` the result is complete (`anytime`).
        Raises BadInputError as `fill` does, for invalid spans, and without spans and threshold.
        """
        return revised(self, text, changed_config(config, options), spans=spans, threshold=threshold)

    def iter_generate(
        self,
        prompts: Iterable[Prompt | Request],
        config: GenerationConfig | None = None,
        *,
        max_num_seqs: int = 1,
        on_step: Callable[[int, Step], None] | None = None,
        **options: Unpack[GenerationOptions],
    ) -> Generator[GenerationResult, None, None]:
        """Decode prompts and yield the results in order, each as soon as it and all earlier ones are done.

        A Request is decoded by its own config, other prompts by `config` (None: the bundle's own) with `options`
        changed. `max_num_seqs` requests share every forward, which changes no answer (docs/reference/python.md).
        `on_step` is called after every step with the number of the prompt, from 0, and the step. An exception from it
        ends that prompt, and the iterator raises it.

        Raises BadInputError at once for invalid options, and for one prompt instead of several. The iterator raises as
        `stream` does at the first invalid prompt, and for a `max_num_seqs` that is not from 1 to NUM_SEQS_LIMIT.
        """
        check_prompts(prompts)
        check_callback(on_step)
        self._turns.check()
        config = self.config(config, **options) if options else config
        return self._results(prompts, config, max_num_seqs, on_step)

    def handles(
        self,
        prompts: Iterable[Prompt | Request | LopaError],
        config: GenerationConfig | None = None,
        *,
        max_num_seqs: int = 1,
        on_step: Callable[[int, Step], None] | None = None,
    ) -> Generator[RequestHandle, None, None]:
        """Decode prompts like `iter_generate`, and yield the handle of each once it and all earlier ones have ended.

        A handle has the result or the error, the events, and the form of the answer. An error among `prompts` is in its
        handle. If the device fails or `prompts` raises, the available results come first.
        """
        check_prompts(prompts)
        check_callback(on_step)
        self._turns.check()
        max_num_seqs = check_int("max_num_seqs", max_num_seqs, min=1, max=NUM_SEQS_LIMIT)
        pool = self._pool()
        entries = enumerate(prompts)
        pending: deque[RequestHandle] = deque()
        waiting: deque[Job] = deque()
        failure: Exception | None = None
        try:
            while True:
                while pending and pending[0].done:
                    yield pending.popleft()
                if failure is not None:
                    raise failure
                try:
                    for number, prompt in islice(entries, max_num_seqs - len(pool) - len(waiting)):
                        callback = None if on_step is None else partial(on_step, number)
                        pending.append(self._queue(waiting, prompt, config, callback))
                    if not pending:
                        return
                    for _ in range(pool.number_fitting(waiting)):
                        pool.add(waiting.popleft())
                    pool.step()
                except Exception as error:  # raised after the available results
                    failure = error
                    pool.hand_out_ended()
        finally:
            pool.close()

    @with_known_arguments
    def stream(
        self,
        prompt: Prompt | Request | PreparedRequest | None = None,
        config: GenerationConfig | None = None,
        *,
        messages: Messages | None = None,
        drafts: bool = False,
        on_step: Callable[[Step], None] | None = None,
        **options: Unpack[GenerationOptions],
    ) -> Generator[Event, None, None]:
        """Decode one prompt and yield events: committed text, drafts if requested, and the result last.

        `prompt` is text, ids, a text with holes, a Chat, or its messages. The keyword `messages` is one chat. A
        beginning-of-text token is added to text if the bundle requires it. Ids are used unchanged. The prompt is
        decoded by `config` (None: the bundle's own) with `options` changed; a Request has its own config, and a
        PreparedRequest includes all arguments but `on_step`. Closing the iterator cancels the request. Raises
        BadInputError for invalid options, for options with a Request or PreparedRequest, and for an empty or too long
        prompt. Raises it too for branches="auto" without a cost table of this device in the bundle. Raises
        DecoderBusyError in a signal handler during a round, and DecoderClosedError.
        """
        self._turns.check()
        prompt = prompt_or_messages(prompt, messages)
        if isinstance(prompt, PreparedRequest):
            given = dict.fromkeys(options, True)
            check_nothing_beside(prompt, config=config is not None, drafts=bool(drafts), **given)
            return self._events(replace(prompt._take(), on_step=on_step))
        return self._events(self._job(request_from(prompt, config, options), drafts=drafts, on_step=on_step))

    def prepare(
        self,
        prompt: Prompt | Request,
        config: GenerationConfig | None = None,
        *,
        drafts: bool = False,
        **options: Unpack[GenerationOptions],
    ) -> PreparedRequest:
        """Check a request and return it for `stream`, with its resolved options. Raises as `stream` does."""
        self._turns.check()
        return PreparedRequest(self._job(request_from(prompt, config, options), drafts=drafts))

    def stream_text(
        self,
        prompt: Prompt | None = None,
        config: GenerationConfig | None = None,
        *,
        messages: Messages | None = None,
        on_step: Callable[[Step], None] | None = None,
        **options: Unpack[GenerationOptions],
    ) -> Generator[str, None, None]:
        """Decode one prompt and yield the pieces of its text as they are committed.

        The arguments and errors are the same as for `stream`.
        """
        return _texts(self.stream(prompt, config, messages=messages, on_step=on_step, **options))

    def _pool(self, cache_tokens: int = PREFIX_CACHE_TOKENS, observer: EngineObserver | None = None) -> RequestPool:
        """Return an empty pool on this decoder's session, with a prefix cache of up to `cache_tokens` tokens."""
        return RequestPool(
            self.session,
            self.bundle.manifest,
            self.tokenizer,
            PrefixTree(cache_tokens) if cache_tokens else None,
            observer=observer,
            turns=self._turns,
        )

    def close(self) -> None:
        """Free the session and end the helper process. Closing twice is allowed.

        If a round runs, the session is freed after it. Later rounds raise DecoderClosedError.
        """
        self._turns.end(self._free)

    def _free(self) -> None:
        self._preparation.close()
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

    @property
    def has_costs(self) -> bool:
        """True if branches="auto" works here. A warning says why the bundle's cost table does not apply."""
        return self._preparation.has_costs

    def _results(
        self,
        prompts: Iterable[Prompt | Request],
        config: GenerationConfig | None,
        max_num_seqs: int,
        on_step: Callable[[int, Step], None] | None,
    ) -> Generator[GenerationResult, None, None]:
        with closing(self.handles(prompts, config, max_num_seqs=max_num_seqs, on_step=on_step)) as handles:
            for handle in handles:
                yield handle.result()

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

    def _queue(
        self,
        waiting: deque[Job],
        prompt: Prompt | Request | LopaError,
        config: GenerationConfig | None,
        on_step: Callable[[Step], None] | None,
    ) -> RequestHandle:
        """Return the handle of a prompt that joined the queue, or that failed at once."""
        try:
            if isinstance(prompt, LopaError):
                raise prompt
            with errors_as_bad_input(
                "an invalid prompt", expected="text or ids, and a config", remedy="correct the prompt or its config"
            ):
                job = self._job(request_among(prompt, config), on_step=on_step)
        except REQUEST_ERRORS as error:
            raise_if_from_handler(error)
            handle = RequestHandle()
            handle.put_error(error)
            return handle
        waiting.append(job)
        return job.handle


def _texts(events: Generator[Event, None, None]) -> Generator[str, None, None]:
    with closing(events):
        for event in events:
            if isinstance(event, TextEvent):
                yield event.text
