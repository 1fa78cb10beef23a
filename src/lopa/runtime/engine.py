"""Many requests at once, from any thread: one worker decodes all that run together, the others wait their turn.

Knows who waits, who may run and how everything ends. Does not know how requests share a forward (requests/pool.py), nor
how one is decoded.
"""

import asyncio
import threading
import time
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence, Sized
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Any, Self, Unpack

from lopa.runtime.bundle.manifest import Manifest
from lopa.runtime.checked_values import MAX_SECONDS, check_callback, check_float, check_int
from lopa.runtime.decoder import MAX_PARALLEL, Decoder
from lopa.runtime.decoding.decoding import Step
from lopa.runtime.errors import (
    BadInputError,
    EngineClosedError,
    LopaError,
    PreparationStoppedError,
    QueueFullError,
    stopped_preparation,
)
from lopa.runtime.generation_config import GenerationConfig, GenerationOptions
from lopa.runtime.grammar.limits import GrammarLimits
from lopa.runtime.parallel.branch_session import STALL_SECONDS
from lopa.runtime.plan import DecodingPlan
from lopa.runtime.plan.renamed_options import accept_former_arguments
from lopa.runtime.requests.admission import MAX_NUM_BATCHED_TOKENS, Admission
from lopa.runtime.requests.handle import RequestHandle
from lopa.runtime.requests.job import Job
from lopa.runtime.requests.observer import EngineObserver, checked_observer
from lopa.runtime.requests.prepared import PreparedRequest
from lopa.runtime.requests.prompt_store import PREFIX_CACHE_TOKENS
from lopa.runtime.requests.reservation import Reservation
from lopa.runtime.requests.status import EngineStatus
from lopa.runtime.sessions.device_errors import failure_of_device
from lopa.runtime.text.prompt_ids import Prompt, PromptRequest, check_prompts

MAX_NUM_SEQS = 8
QUEUE_LIMIT = 64
MAX_WAITING = 10**6
MAX_PREFIX_CACHE_TOKENS = 2**40
_RENAMED = {
    "slots": "max_num_seqs",
    "joining_rows": "max_num_batched_tokens",
    "prompt_rows": "prefix_cache_tokens",
}
"""Current name of each former argument."""


class Engine:
    """Decodes the requests of any number of threads with one decoder, which nothing else uses meanwhile.

    Requests join at the next round in the order in which they came, as soon as fewer than `max_num_seqs` run. A
    result is the same whatever else runs (docs/reference/python.md says how far). Every handle ends: with a result,
    with its request's own error, or, when the device fails, with an EngineFailedError. Closing cancels what has not
    ended, draining waits for it. Every method may be called from any thread.
    """

    @accept_former_arguments(_RENAMED)
    def __init__(
        self,
        decoder: Decoder,
        *,
        max_num_seqs: int = MAX_NUM_SEQS,
        queue_limit: int = QUEUE_LIMIT,
        prefix_cache_tokens: int = PREFIX_CACHE_TOKENS,
        max_num_batched_tokens: int = MAX_NUM_BATCHED_TOKENS,
        observer: EngineObserver | None = None,
    ) -> None:
        """Start an engine on `decoder`, which stays open when the engine closes.

        Args:
            decoder: The decoder whose session computes the forwards.
            max_num_seqs: Maximum number of requests that run at once, each with its own prefix cache.
            queue_limit: Maximum number of waiting requests.
            prefix_cache_tokens: Prompt tokens whose keys and values are kept for later requests with the same prompt;
                0 keeps none. Only used with window="block_causal".
            max_num_batched_tokens: Maximum number of prompt tokens of the requests that join in one round. While other
                requests run, a longer prompt first waits for the rounds that its tokens would have filled.
            observer: Receives a report of every round, admission and end.

        Raises BadInputError for a number out of range and for an observer without the expected methods.
        """
        self._max_num_seqs = check_int("max_num_seqs", max_num_seqs, min=1, max=MAX_PARALLEL)
        self._queue_limit = check_int("queue_limit", queue_limit, min=0, max=MAX_WAITING)
        rows = check_int("prefix_cache_tokens", prefix_cache_tokens, min=0, max=MAX_PREFIX_CACHE_TOKENS)
        self._admission = Admission(
            check_int("max_num_batched_tokens", max_num_batched_tokens, min=1, max=MAX_PREFIX_CACHE_TOKENS)
        )
        self._decoder = decoder
        self._closes_decoder = False
        self._pool = decoder._pool(rows, checked_observer(observer))
        self._changed = threading.Condition()
        # Under the condition's lock, from here on.
        self._waiting: list[Job] = []
        self._admitted: list[Job] = []
        """Those that run, and some that have ended."""
        self._ending: list[Job] = []
        """Those that left without having run, and are given their ends."""
        self._load = self._pool.load()
        self._held: list[Reservation] = []
        """For requests to come."""
        self._draining = self._closed = False
        self._cut_short = False
        """Whether closing, or a failure, ended requests that would have gone on."""
        self._failure: LopaError | None = None
        self._worker = threading.Thread(target=self._work, name="lopa-engine", daemon=True)
        self._worker.start()

    @classmethod
    @accept_former_arguments(_RENAMED)
    def open(
        cls,
        path: Path | str,
        devices: Sequence[str] = ("cpu",),
        *,
        threads: int | None = None,
        device_timeout: float = STALL_SECONDS,
        max_num_seqs: int = MAX_NUM_SEQS,
        queue_limit: int = QUEUE_LIMIT,
        prefix_cache_tokens: int = PREFIX_CACHE_TOKENS,
        max_num_batched_tokens: int = MAX_NUM_BATCHED_TOKENS,
        observer: EngineObserver | None = None,
        grammar_limits: GrammarLimits | None = None,
    ) -> Self:
        """Open the bundle at `path` as Decoder.open does, with the same errors; closing the engine closes it.

        `device_timeout` and `grammar_limits` as there: seconds after which one of several devices is given up, and the
        limits within which grammars are prepared in a helper process.
        """
        decoder = Decoder.open(
            path, devices, threads=threads, device_timeout=device_timeout, grammar_limits=grammar_limits
        )
        try:
            engine = cls(
                decoder,
                max_num_seqs=max_num_seqs,
                queue_limit=queue_limit,
                prefix_cache_tokens=prefix_cache_tokens,
                max_num_batched_tokens=max_num_batched_tokens,
                observer=observer,
            )
        except BadInputError:
            decoder.close()
            raise
        engine._closes_decoder = True
        return engine

    def config(self, base: GenerationConfig | None = None, /, **options: Unpack[GenerationOptions]) -> GenerationConfig:
        """Return the config of a request that names `options`, or `base` with `options` changed, as Decoder.config."""
        return self._decoder.config(base, **options)

    def plan(self, config: GenerationConfig | None = None) -> DecodingPlan:
        """Return every option with the value that holds when the engine decodes `config`, as Decoder.plan does."""
        return self._decoder.plan(config)

    def prompt_from_messages(self, messages: Sequence[Mapping[str, Any]], *, special_tokens: bool = False) -> list[int]:
        """Ids of a chat by the bundle's chat template, ready for `submit`; as Decoder.prompt_from_messages."""
        return self._decoder.prompt_from_messages(messages, special_tokens=special_tokens)

    @property
    def has_chat_template(self) -> bool:
        """Whether the bundle has one for `prompt_from_messages`."""
        return self._decoder.tokenizer.has_chat_template

    @property
    def manifest(self) -> Manifest:
        """The bundle's."""
        return self._decoder.bundle.manifest

    @property
    def closed(self) -> bool:
        """Whether the engine has ended: after close(), or when the device has failed."""
        return self._closed

    @property
    def status(self) -> EngineStatus:
        """What runs and waits, what it holds and what went wrong; waits for no round."""
        with self._changed:
            return EngineStatus(
                running=_unfinished(self._admitted),
                waiting=len(self._waiting),
                reserved=self._places_held(),
                max_num_seqs=self._max_num_seqs,
                queue_limit=self._queue_limit,
                cache_rows=self._load.cache_rows,
                cache_rows_limit=self._max_num_seqs * self.manifest.dimensions.max_positions,
                prompt_rows=self._load.prompt_rows,
                stored_rows=self._load.stored_rows,
                saved_rows=self._load.saved_rows,
                rounds=self._load.rounds,
                draining=self._draining,
                closed=self._closed,
                failure=self._failure,
            )

    async def prepare(
        self,
        prompt: Prompt,
        config: GenerationConfig | None = None,
        *,
        deadline: float | None = None,
        drafts: bool = False,
        on_step: Callable[[Step], None] | None = None,
        **options: Unpack[GenerationOptions],
    ) -> PreparedRequest:
        """Check a request on a thread of its own, so that an asyncio loop goes on meanwhile; `submit` then takes it.

        A grammar can take seconds to prepare, and a long prompt some time. Cancelling the task stops the preparation of
        a grammar that has a helper process. Raises as `submit` does.
        """
        self._check_takes(1)
        cancelled = threading.Event()
        prepare = partial(
            self._prepared_job,
            prompt,
            config,
            deadline=deadline,
            drafts=drafts,
            on_step=on_step,
            is_cancelled=cancelled.is_set,
            **options,
        )
        try:
            return PreparedRequest(await asyncio.to_thread(prepare))
        finally:
            cancelled.set()

    def submit(
        self,
        prompt: Prompt | PreparedRequest,
        config: GenerationConfig | None = None,
        *,
        deadline: float | None = None,
        drafts: bool = False,
        on_step: Callable[[Step], None] | None = None,
        **options: Unpack[GenerationOptions],
    ) -> RequestHandle:
        """Ask for an answer, from any thread; returns once the request is checked.

        The prompt is decoded by `config` (None: the bundle's own) with `options` changed. `deadline` is in seconds from
        now, waiting included (the config's time_limit counts from the first round); what is committed by then is the
        result. `on_step` hears of every step on the engine's thread; what it raises ends the request. A PreparedRequest
        has all of them already.

        Raises BadInputError as Decoder.stream does, for a negative deadline and for a PreparedRequest that was
        submitted before, QueueFullError, EngineClosedError (also while the engine drains).
        """
        self._check_takes(1)  # before anything is done for a request that cannot come in
        if isinstance(prompt, PreparedRequest):
            job = prompt._take()
        else:
            job = self._prepared_job(prompt, config, deadline=deadline, drafts=drafts, on_step=on_step, **options)
        self._take([job])
        return job.handle

    def submit_many(
        self,
        prompts: Iterable[Prompt | PromptRequest],
        config: GenerationConfig | None = None,
        *,
        deadline: float | None = None,
        drafts: bool = False,
        on_step: Callable[[int, Step], None] | None = None,
        reservation: Reservation | None = None,
        **options: Unpack[GenerationOptions],
    ) -> tuple[RequestHandle, ...]:
        """Ask for several answers, all or none of them; a handle for each prompt, in order.

        A PromptRequest is decoded by its own config, other prompts by `config` with `options` changed. Copies (the same
        ids and config, with temperature 0 and no `on_step`) are decoded once, in one slot and one place of the queue:
        each handle gives the whole answer, and ends by itself when it is cancelled. `on_step` is called with the number
        of the prompt, from 0, and the step. The requests take the places of `reservation`, if there is one, and free
        ones beyond it.

        Raises as `submit` does, for the first prompt that cannot be used or finds no place, and
        PreparationStoppedError when the reservation is cancelled meanwhile; then nothing runs.
        """
        check_prompts(prompts)
        check_callback(on_step)
        config = self.config(config, **options) if options else config
        submitted = time.perf_counter()
        handles: list[RequestHandle] = []
        jobs: dict[Hashable, Job] = {}
        self._check_takes(1, reservation)
        for number, prompt in enumerate(prompts):
            own, text = (prompt.config, prompt.prompt) if isinstance(prompt, PromptRequest) else (config, prompt)
            try:
                job = self._prepared_job(
                    text,
                    own,
                    deadline=deadline,
                    drafts=drafts,
                    on_step=None if on_step is None else partial(on_step, number),
                    is_cancelled=lambda: reservation is not None and reservation.cancelled,
                )
            except BadInputError as error:
                if number == 0 and isinstance(prompts, Sized) and len(prompts) == 1:
                    raise
                told = error.with_received(f"in prompt {number}, counted from 0: {error.received}")
                told.prompt_number = number
                raise told from error
            handles.append(job.handle)
            work = job.work()
            jobs[work] = jobs[work].with_copy(job.handle) if work in jobs else job.submitted_at(submitted)
            self._check_takes(len(jobs), reservation)
        self._take(jobs.values(), reservation)
        return tuple(handles)

    @contextmanager
    def reserved(self, count: int) -> Iterator[Reservation]:
        """Hold `count` places for a `submit_many` inside, while its requests are prepared; given up at the end.

        Raises BadInputError for a number that is too small, QueueFullError and EngineClosedError.
        """
        check_int("count", count, min=1, max=MAX_PARALLEL + MAX_WAITING)
        with self._changed:
            self._check_takes(count)
            self._held.append(reservation := Reservation(count))
        try:
            yield reservation
        finally:
            with self._changed:
                if reservation in self._held:
                    self._held.remove(reservation)

    def drain(self, timeout: float | None = None) -> bool:
        """Refuse new requests from now on and wait until those that are there have ended, `timeout` seconds at most.

        Whether all have, and none was cut short by close() or a failure. The engine stays open, and what has not ended
        in time goes on; draining again waits again. Raises BadInputError for a timeout that is no number of seconds,
        and on the engine's own thread, which would wait for itself.
        """
        if timeout is not None:
            timeout = check_float("timeout", timeout, min=0.0, max=MAX_SECONDS)
        if threading.current_thread() is self._worker:
            raise BadInputError(
                "drain() on the engine's own thread",
                expected="another thread than the one that decodes",
                remedy="call it outside on_step and observers",
            )
        with self._changed:
            self._draining = True
            return self._changed.wait_for(lambda: not self._places_taken(), timeout) and not self._cut_short

    def close(self) -> None:
        """Cancel what has not ended, after the round that runs, and end the worker; closing twice is no error."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()
        self._worker.join()
        if self._closes_decoder:
            self._decoder.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _work(self) -> None:
        """The worker: admit and step until the engine is closed; whatever happens, no handle is left without an end."""
        try:
            while self._wait_for_work():
                self._admit()
                self._pool.step()
            self._cancel_all()
        except BaseException as error:
            self._fail(error)
        finally:
            self._note_ends()

    def _wait_for_work(self) -> bool:
        """Sleep until there is something to decode; False when the engine is closed."""
        with self._changed:
            self._note_ends()
            self._changed.wait_for(lambda: self._closed or self._waiting or len(self._pool))
            return not self._closed

    def _note_ends(self) -> None:
        """After a round: what the pool holds now, for `status`, and news for who drains."""
        with self._changed:
            self._load = self._pool.load()
            self._changed.notify_all()

    def _admit(self) -> None:
        """Those who waited longest join, as many as slots and their prompts' rows allow; those who are due end."""
        with self._changed:
            leaving = [(job, each) for job in self._waiting if (each := job.leaving()).handles]
            gone = {job for job, each in leaving if each.everyone}
            in_time = [job for job in self._waiting if job not in gone]
            rows = [self._pool.rows_to_compute(job) for job in in_time[: self._max_num_seqs - len(self._pool)]]
            count = self._admission.number_joining(rows, nothing_runs=not len(self._pool))
            joining, self._waiting = in_time[:count], in_time[count:]
            self._admitted = [job for job in self._admitted if not job.done] + joining
            self._ending = list(gone)
        for job, each in leaving:
            self._pool.end_unstarted(job, each.handles)
        for job in joining:
            self._pool.add(job)

    def _cancel_all(self) -> None:
        """What close() leaves to the worker; closed, so that no request is added any more."""
        with self._changed:
            self._ending, self._waiting = self._waiting, []
            self._cut_short = bool(_unfinished([*self._admitted, *self._ending]))
        self._pool.cancel_all()
        for job in self._ending:
            self._pool.end_unstarted(job, [(handle, "cancelled") for handle in job.unfinished])

    def _fail(self, error: BaseException) -> None:
        """The device is lost, and with it every request."""
        failure = failure_of_device(self._decoder.session.device, error)
        with self._changed:
            self._closed, self._failure = True, failure
            self._ending, self._waiting = [*self._ending, *self._waiting], []
            lost = [job for job in (*self._admitted, *self._ending) if not job.done]
            self._cut_short = self._cut_short or bool(lost)
        for job in lost:
            self._pool.end_failed(job, failure)
        self._pool.close()

    def _prepared_job(
        self,
        prompt: Prompt,
        config: GenerationConfig | None,
        *,
        deadline: float | None,
        drafts: bool,
        on_step: Callable[[Step], None] | None,
        is_cancelled: Callable[[], bool] = lambda: False,
        **options: Unpack[GenerationOptions],
    ) -> Job:
        """Return a checked request. Raises EngineClosedError where the engine was closed meanwhile."""
        try:
            return self._decoder._job(
                prompt,
                config,
                deadline=deadline,
                drafts=drafts,
                on_step=on_step,
                is_wanted=lambda: not (self._closed or is_cancelled()),
                **options,
            )
        except PreparationStoppedError:
            self._check_takes(0)
            raise

    def _take(self, jobs: Iterable[Job], reservation: Reservation | None = None) -> None:
        """Let requests wait, all of them or none; their reservation ends at that moment, so that none counts twice."""
        with self._changed:
            new = list(jobs)
            self._check_takes(len(new), reservation)
            if reservation is not None and reservation.cancelled:
                raise stopped_preparation()
            if reservation is not None:
                self._held.remove(reservation)
            self._waiting.extend(new)
            self._changed.notify_all()

    def _places_taken(self) -> int:
        """Requests that have not ended; what waits counts until the worker has seen that it was cancelled."""
        return len(self._waiting) + _unfinished(self._admitted) + _unfinished(self._ending)

    def _places_held(self, but_of: Reservation | None = None) -> int:
        return sum(held.places for held in self._held if held is not but_of)

    def _check_takes(self, count: int, reservation: Reservation | None = None) -> None:
        """Raise EngineClosedError or QueueFullError when `count` requests may not come in, held places included."""
        with self._changed:
            if self._closed or self._draining:
                state = "closed" if self._closed else "draining: it ends what it has"
                why = "" if self._failure is None else f", because {self._failure}"
                raise EngineClosedError(
                    f"a request for an engine that is {state}{why}",
                    expected="an open engine",
                    remedy="open another engine",
                )
            if reservation is not None and reservation not in self._held:
                raise BadInputError(
                    "a reservation that this engine does not hold (any more)",
                    expected="one of its own that no request has taken",
                    remedy="call submit_many once inside its `with`",
                )
            taken = self._places_taken()
            held = self._places_held(but_of=reservation)
            if taken + held + count > self._max_num_seqs + self._queue_limit:
                what = "a request more" if count == 1 else f"{count} requests more"
                raise QueueFullError(
                    f"{what}, while {taken} are not done{f' and {held} are on their way' if held else ''}",
                    expected=f"at most {self._max_num_seqs} that run and {self._queue_limit} that wait",
                    remedy="submit again when one is done, or open the engine with a larger queue_limit",
                )


def _unfinished(jobs: Sequence[Job]) -> int:
    """How many have not ended."""
    return sum(not job.done for job in jobs)
