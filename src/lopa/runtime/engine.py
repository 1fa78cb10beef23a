"""Serve many requests at once, from any thread: one worker decodes the running ones, others wait in a queue.

The engine schedules requests and ends them. requests/pool.py shares forwards between them.
"""

import asyncio
import atexit
import threading
import time
import warnings
import weakref
from collections import deque
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence, Sized
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from queue import SimpleQueue
from types import TracebackType
from typing import Any, Self, Unpack

from lopa.runtime.checked_values import MAX_SECONDS, check_callback, check_float, check_int
from lopa.runtime.decoder import NUM_SEQS_LIMIT, Decoder
from lopa.runtime.decoding.step import Step
from lopa.runtime.errors import (
    BadInputError,
    EngineClosedError,
    LopaError,
    PreparationStoppedError,
    QueueFullError,
    ResourceExhaustedError,
    engine_failure,
    raise_if_from_handler,
    stopped_preparation,
)
from lopa.runtime.generation_config import DEFAULT_DEVICES, GenerationConfig, GenerationOptions
from lopa.runtime.generation_config.config import with_known_arguments
from lopa.runtime.grammar.grammar_limits import GrammarLimits
from lopa.runtime.multi_device.branch_session import STALL_SECONDS
from lopa.runtime.requests.admission import MAX_NUM_BATCHED_TOKENS, Admission, EngineStatus, Reservation
from lopa.runtime.requests.handle import RequestHandle, Waiters, ending_handles
from lopa.runtime.requests.job import Job, PreparedRequest
from lopa.runtime.requests.observer import EngineObserver, check_observer
from lopa.runtime.requests.prefix_tree import PREFIX_CACHE_TOKENS
from lopa.runtime.requests.request import (
    Messages,
    Prompt,
    Request,
    check_nothing_beside,
    check_prompts,
    prompt_or_messages,
    request_among,
    request_from,
)
from lopa.runtime.requests.session_turns import left_by_fork

MAX_NUM_SEQS = 8
QUEUE_LIMIT = 64
MAX_WAITING = 10**6
MAX_PREFIX_CACHE_TOKENS = 2**40
"""Upper limit of prefix_cache_tokens. Memory is allocated only when rows are stored."""
_END_SECONDS = 5.0
"""Seconds for the requests of an engine to end at the interpreter's end, if no forward takes longer."""
_open_engines: "weakref.WeakSet[Engine]" = weakref.WeakSet()


class Engine:
    """A scheduler that decodes the requests of any number of threads together, with one decoder.

    Requests join at the next round in order of submission, while fewer than `max_num_seqs` run. A result does not
    depend on the other requests (docs/reference/python.md has the limits of this). Every handle ends with a result or
    an error, which is EngineFailedError if the device failed. The method close() cancels unfinished requests, and
    drain() waits for them. Every method may be called from any thread.
    """

    decoder: Decoder
    """Decoder whose session computes the forwards. It has the bundle, and resolves options."""
    _closed = False
    _ended = True
    """True if the worker does not run."""

    @with_known_arguments
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
        """Start the worker thread. The decoder stays open when the engine closes.

        Args:
            decoder: Decoder whose session computes the forwards.
            max_num_seqs: Maximum number of requests that run at once, each with its own prefix cache.
            queue_limit: Maximum number of waiting requests.
            prefix_cache_tokens: Maximum number of tokens in the prefix cache; 0 for none. It keeps keys and values for
                later requests that begin with the same tokens. docs/how-to/serve.md lists its models.
            max_num_batched_tokens: Maximum number of prompt tokens of the requests that join in one round. While other
                requests run, a longer prompt first waits for the rounds that its tokens would have filled.
            observer: Receives a report of every round, admission and end.

        Raises BadInputError for a number out of range and for an observer without the expected methods,
        DecoderClosedError, and ResourceExhaustedError if no thread can be started.
        """
        self._max_num_seqs = check_int("max_num_seqs", max_num_seqs, min=1, max=NUM_SEQS_LIMIT)
        self._queue_limit = check_int("queue_limit", queue_limit, min=0, max=MAX_WAITING)
        rows = check_int("prefix_cache_tokens", prefix_cache_tokens, min=0, max=MAX_PREFIX_CACHE_TOKENS)
        self._admission = Admission(
            check_int("max_num_batched_tokens", max_num_batched_tokens, min=1, max=MAX_PREFIX_CACHE_TOKENS)
        )
        self.decoder = decoder
        self._closes_decoder = False
        decoder._turns.check()
        check_observer(observer)
        self._pool = decoder._pool(rows, observer)
        self._pool._own_errors = BaseException  # no signal handler runs on the worker
        self._lock = threading.RLock()
        """Makes a check of the capacity and its use one step. Nobody waits with it, and the worker does not need it, so
        that signal handlers may interrupt any method, and wait for requests."""
        self._waiting: deque[Job] = deque()
        """Requests in order of submission. The worker adds a job to one of the next lists before it removes it here."""
        self._admitted: list[Job] = []
        """Running requests, and some that have ended."""
        self._ending: list[Job] = []
        """Requests that ended before they ran, and whose handles still need their results."""
        self._work: SimpleQueue[Engine | None] = SimpleQueue()
        """Wakes the worker, which has no other reference to the engine while it is idle, or ends it (None)."""
        self._drains = Waiters()
        self._load = self._pool.load()
        self._reservations: list[Reservation] = []
        """Reservations for future requests."""
        self._draining = self._closed = False
        self._cut_short = False
        """True if close() or a failure ended unfinished requests."""
        self._failure: LopaError | None = None
        self._worker = threading.Thread(target=_work, args=(self._work,), name="lopa-engine", daemon=True)
        try:
            self._worker.start()
        except RuntimeError as error:
            raise ResourceExhaustedError(
                f"no thread for the engine: {error}",
                expected="a process that may start one more thread",
                remedy="raise the limit of threads and processes (ulimit -u, pids of a container), or free memory",
            ) from error
        self._ended = False
        _open_engines.add(self)
        left_by_fork.add(self)

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
        max_num_seqs: int = MAX_NUM_SEQS,
        queue_limit: int = QUEUE_LIMIT,
        prefix_cache_tokens: int = PREFIX_CACHE_TOKENS,
        max_num_batched_tokens: int = MAX_NUM_BATCHED_TOKENS,
        observer: EngineObserver | None = None,
        grammar_limits: GrammarLimits | None = None,
        defaults: Mapping[str, Any] | None = None,
        chat_template: str | None = None,
        trusted_keys: Sequence[Path | str] | None = None,
    ) -> Self:
        """Open the bundle at `path` as Decoder.open does, with the same errors. Closing the engine closes it.

        The arguments of Decoder.open have the same meaning here.
        """
        decoder = Decoder.open(
            path,
            devices,
            device=device,
            threads=threads,
            device_timeout=device_timeout,
            grammar_limits=grammar_limits,
            defaults=defaults,
            chat_template=chat_template,
            trusted_keys=trusted_keys,
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
        except LopaError:
            decoder.close()
            raise
        engine._closes_decoder = True
        return engine

    @property
    def closed(self) -> bool:
        """True after close() or a failure of the device."""
        return self._closed

    @property
    def status(self) -> EngineStatus:
        """Current load, limits and failure. Reading it does not wait for a round."""
        waiting = set(self._waiting)  # read first, as requests move on from there
        admitted, device_rows = self._admitted, self.decoder._preparation.device_rows
        limit = self._max_num_seqs * self.decoder.bundle.manifest.dimensions.max_positions
        return EngineStatus(
            **vars(self._load),
            running=_unfinished(admitted),
            waiting=len(waiting.difference(admitted, self._ending)),
            reserved=self._reserved_places(),
            max_num_seqs=self._max_num_seqs,
            queue_limit=self._queue_limit,
            cache_rows_limit=min(limit, device_rows or limit),
            draining=self._draining,
            closed=self._closed,
            failure=self._failure,
        )

    async def prepare(
        self,
        prompt: Prompt | Request,
        config: GenerationConfig | None = None,
        *,
        deadline: float | None = None,
        drafts: bool = False,
        on_step: Callable[[Step], None] | None = None,
        **options: Unpack[GenerationOptions],
    ) -> PreparedRequest:
        """Check a request on a separate thread, so that the asyncio loop continues, and return it for `submit`.

        Preparing a grammar can take seconds, and checking a long prompt takes time too. Cancelling the task stops the
        preparation of a grammar in a helper process. Raises as `submit` does.
        """
        self._check_capacity(1)
        cancelled = threading.Event()
        prepare = partial(
            self._job,
            request_from(prompt, config, options),
            deadline=deadline,
            drafts=drafts,
            on_step=on_step,
            is_cancelled=cancelled.is_set,
        )
        try:
            return PreparedRequest(await asyncio.to_thread(prepare))
        finally:
            cancelled.set()

    @with_known_arguments
    def submit(
        self,
        prompt: Prompt | Request | PreparedRequest | None = None,
        config: GenerationConfig | None = None,
        *,
        messages: Messages | None = None,
        deadline: float | None = None,
        drafts: bool = False,
        on_step: Callable[[Step], None] | None = None,
        **options: Unpack[GenerationOptions],
    ) -> RequestHandle:
        """Submit a request, from any thread, and return its handle once it is checked.

        The prompt is decoded by `config` (None: the bundle's own) with `options` changed. `deadline` is in seconds from
        now, including the wait (time_limit counts from the first round). When it passes, the committed text is the
        result. `on_step` is called after every step on the engine's thread; an exception from it ends the request. A
        PreparedRequest includes all of these, and a Request its config.

        Raises BadInputError as Decoder.stream does, for a negative deadline, for an argument that the PreparedRequest
        includes, and for one that was already submitted. Raises QueueFullError, and EngineClosedError also while the
        engine drains.
        """
        self._check_capacity(1)  # before any work for a request that would be rejected
        prompt = prompt_or_messages(prompt, messages)
        if isinstance(prompt, PreparedRequest):
            given = {"config": config, "deadline": deadline, "on_step": on_step, "drafts": drafts or None}
            check_nothing_beside(
                prompt, **{name: each is not None for name, each in given.items()}, **dict.fromkeys(options, True)
            )
            job = prompt._take()
        else:
            request = request_from(prompt, config, options)
            job = self._job(request, deadline=deadline, drafts=drafts, on_step=on_step)
        self._enqueue([job])
        return job.handle

    def submit_many(
        self,
        prompts: Iterable[Prompt | Request],
        config: GenerationConfig | None = None,
        *,
        deadline: float | None = None,
        drafts: bool = False,
        on_step: Callable[[int, Step], None] | None = None,
        reservation: Reservation | None = None,
        **options: Unpack[GenerationOptions],
    ) -> tuple[RequestHandle, ...]:
        """Submit several requests, all or none of them, and return a handle for each prompt, in order.

        A Request is decoded by its own config, other prompts by `config` with `options` changed. Copies (the
        same ids and config, with temperature 0 and no `on_step`) are decoded once and use one slot. Each of their
        handles has the whole answer and can be cancelled separately. All need a free place at once; `reserved` needs
        one for the first. `on_step` is called with the number of the prompt, from 0, and the step. The requests use
        the places of `reservation`, if given, and free ones beyond it.

        Raises as `submit` does, for the first prompt that is invalid or finds no place, and PreparationStoppedError
        when the reservation is cancelled. In these cases nothing runs.
        """
        check_prompts(prompts)
        check_callback(on_step)
        config = self.decoder.config(config, **options) if options else config
        submitted = time.perf_counter()
        handles: list[RequestHandle] = []
        jobs: dict[Hashable, Job] = {}
        self._check_capacity(1, reservation)
        for number, prompt in enumerate(prompts):
            try:
                job = self._job(
                    request_among(prompt, config),
                    deadline=deadline,
                    drafts=drafts,
                    on_step=None if on_step is None else partial(on_step, number),
                    is_cancelled=lambda: reservation is not None and reservation.cancelled,
                )
            except BadInputError as error:
                raise_if_from_handler(error)
                if number == 0 and isinstance(prompts, Sized) and len(prompts) == 1:
                    raise
                located = error.with_received(f"in prompt {number}, counted from 0: {error.received}")
                located.prompt_number = number
                raise located from error
            handles.append(job.handle)
            key = job.decode_key()
            jobs[key] = jobs[key].with_copy(job.handle) if key in jobs else job.submitted_at(submitted)
            self._check_capacity(len(jobs), reservation)
        self._enqueue(jobs.values(), reservation)
        return tuple(handles)

    @contextmanager
    def reserved(self, count: int) -> Iterator[Reservation]:
        """Reserve `count` places for a `submit_many` inside the context. The caller can prepare its requests there.

        One free place is enough, and the others may exceed `queue_limit`. Otherwise requests for one place, which are
        repeated, would always come first. Unused places are released at the end. Raises BadInputError for a number out
        of range, EngineClosedError, and QueueFullError also for more places than the engine has.
        """
        check_int("count", count, min=1, max=NUM_SEQS_LIMIT + MAX_WAITING)
        with self._lock:
            self._check_capacity(count if count > self._max_num_seqs + self._queue_limit else 1)
            self._reservations.append(reservation := Reservation(count))
        try:
            yield reservation
        finally:
            with self._lock:
                if reservation in self._reservations:
                    self._reservations.remove(reservation)

    def drain(self, timeout: float | None = None) -> bool:
        """Reject new requests from now on and wait at most `timeout` seconds until all others have ended.

        Return True if all have ended and none was cut short by close() or a failure. The engine stays open, and
        unfinished requests continue. Call it again to wait longer. Raises BadInputError for an invalid timeout, and on
        the engine's own thread, which would wait for itself.
        """
        if timeout is not None:
            timeout = check_float("timeout", timeout, min=0.0, max=MAX_SECONDS)
        self._check_thread("drain()")
        with self._lock:
            self._draining = True
        return self._drains.wait_until(lambda: not self._unfinished_places(), timeout) and not self._cut_short

    def close(self) -> None:
        """Cancel unfinished requests after the current round, and end the worker. Closing twice is allowed.

        Raises BadInputError on the engine's own thread, which would wait for itself.
        """
        self._check_thread("close()")
        self._stop()
        self._worker.join()
        self._work = SimpleQueue()  # the old one refers to the engine
        if self._closes_decoder:
            self.decoder.close()

    def __del__(self) -> None:
        if not (self._ended or self._closed):
            warnings.warn("an engine was dropped without close()", ResourceWarning, stacklevel=2, source=self)
            self._work.put(None)

    def _stop(self) -> None:
        """Tell the worker to end."""
        self._closed = True
        self._work.put(self)

    def _check_thread(self, call: str) -> None:
        if threading.current_thread() is self._worker:
            raise BadInputError(
                f"{call} called on the engine's own thread",
                expected="a call from another thread",
                remedy="call it outside on_step and observers",
            )

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _run(self) -> bool:
        """Admit and decode requests until there are none, and return True, or until the engine is closed. Then every
        handle has ended.
        """
        try:
            while not self._closed and (self._waiting or len(self._pool)):
                self._admit()
                self._pool.step()
                self._update_load()
            if not self._closed:
                return True
            self._ended = True  # before the last look at the queue
            self._cancel_all()
        except BaseException as error:
            self._ended = True
            self._fail(error)
        self._update_load()
        self._pool.close()
        return False

    def _update_load(self) -> None:
        """Update the load for `status` after a round, and notify waiting threads."""
        self._load = self._pool.load()
        self._drains.notify()

    def _admit(self) -> None:
        """Admit waiting requests in order, as slots, the device's memory and prompt rows allow, and end cancelled and
        late ones.
        """
        waiting = list(self._waiting)
        leaving = [(job, each) for job in waiting if (each := ending_handles(job.unfinished, job.deadline))]
        gone = {job for job, each in leaving if len(each) == len(job.unfinished)}
        in_time = [job for job in waiting if job not in gone]
        first = in_time[: self._max_num_seqs - len(self._pool)]
        rows = list(map(self._pool.prompt_rows_to_compute, first[: self._pool.number_fitting(first)]))
        joining = in_time[: self._admission.number_joining(rows, nothing_runs=not len(self._pool))]
        self._admitted = [job for job in self._admitted if not job.done] + joining
        self._ending = list(gone)
        for job in (*gone, *joining):
            self._waiting.remove(job)
        for job, each in leaving:
            self._pool.end_unstarted(job, each)
        for job in joining:
            self._pool.add(job)

    def _cancel_all(self) -> None:
        """Cancel all requests after close(). Requests that are added later are rejected."""
        self._ending = list(self._waiting)
        self._waiting.clear()
        self._cut_short = bool(_unfinished([*self._admitted, *self._ending]))
        self._pool.cancel_all()
        for job in self._ending:
            self._pool.end_unstarted(job, [(handle, "cancelled") for handle in job.unfinished])

    def _fail(self, error: BaseException) -> None:
        """Close the engine and end every request with the device's failure."""
        failure = engine_failure(self.decoder.session.device, error)
        self._failure, self._closed = failure, True
        self._ending = [*self._ending, *self._waiting]
        self._waiting.clear()
        lost = [job for job in (*self._admitted, *self._ending) if not job.done]
        self._cut_short = self._cut_short or bool(lost)
        for job in lost:
            self._pool.end_failed(job, failure)
        self._pool.close()

    def end_in_child(self) -> None:
        """End the engine in a forked child, and its requests with an error. Not for callers."""
        self._lock = threading.RLock()
        self._closed = self._ended = True
        self._failure = EngineClosedError(
            "the engine is in another process, which this one was forked from",
            expected="an engine of this process",
            remedy="open the engine after the fork, or start processes with spawn",
        )
        for job in (*self._admitted, *self._ending, *self._waiting):
            for handle in job.unfinished:
                handle.put_error(self._failure)

    def _job(
        self,
        request: Request,
        *,
        deadline: float | None,
        drafts: bool,
        on_step: Callable[[Step], None] | None,
        is_cancelled: Callable[[], bool] = lambda: False,
    ) -> Job:
        """Return a checked request. Raises EngineClosedError if the engine was closed meanwhile."""
        try:
            return self.decoder._job(
                request,
                deadline=deadline,
                drafts=drafts,
                on_step=on_step,
                is_wanted=lambda: not (self._closed or is_cancelled()),
            )
        except PreparationStoppedError:
            self._check_capacity(0)
            raise

    def _enqueue(self, jobs: Iterable[Job], reservation: Reservation | None = None) -> None:
        """Queue requests, all or none. Their reservation ends at the same moment, so that no request counts twice."""
        with self._lock:
            new = list(jobs)
            self._check_capacity(len(new), reservation)
            if reservation is not None and reservation.cancelled:
                raise stopped_preparation()
            if reservation is not None:
                self._reservations.remove(reservation)
            queued = time.perf_counter()
            for job in new:
                for handle in job.unfinished:
                    handle.timing.queued = queued
            try:
                self._waiting.extend(new)
            finally:  # even if a signal handler raises
                self._work.put(self)
            if self._ended:  # since the check, so that the worker may not have seen the requests
                self._waiting.clear()
                self._check_capacity(0)

    def _unfinished_places(self) -> int:
        """Return the number of unfinished requests. A cancelled one counts until the worker has seen it."""
        waiting = set(self._waiting)  # read first, as requests move on from there
        return len(waiting | {job for job in (*self._admitted, *self._ending) if not job.done})

    def _reserved_places(self, except_for: Reservation | None = None) -> int:
        return sum(each.places for each in self._reservations if each is not except_for)

    def _check_capacity(self, count: int, reservation: Reservation | None = None) -> None:
        """Raise EngineClosedError or QueueFullError if `count` requests exceed the limits, reservations included."""
        with self._lock:
            if self._closed or self._draining:
                state = "closed" if self._closed else "draining and accepts no new requests"
                why = "" if self._failure is None else f", because {self._failure}"
                raise EngineClosedError(
                    f"the engine is {state}{why}", expected="an open engine", remedy="open another engine"
                ) from self._failure
            if reservation is not None and reservation not in self._reservations:
                raise BadInputError(
                    "a reservation of another engine, or one that was used or released",
                    expected="an unused reservation of this engine",
                    remedy="call submit_many once inside its `with` block",
                )
            unfinished = self._unfinished_places()
            reserved = self._reserved_places(except_for=reservation)
            has_places = reservation is not None and count <= reservation.places
            if not has_places and unfinished + reserved + count > self._max_num_seqs + self._queue_limit:
                reservations = f" and {reserved} reserved" if reserved else ""
                more = f", {count} more submitted" if count > 1 else ""  # a reservation of one may stand for several
                raise QueueFullError(
                    f"queue full: {unfinished} unfinished{reservations} requests{more}",
                    expected=f"at most {self._max_num_seqs} running and {self._queue_limit} waiting requests",
                    remedy="retry later, or open the engine with a larger queue_limit",
                )


def _work(work: "SimpleQueue[Engine | None]") -> None:
    """Run an engine until it is closed or dropped."""
    while (engine := work.get()) is not None and engine._run():
        del engine


def _end_engines() -> None:
    """Cancel all requests at the interpreter's end. A callback that hangs does not keep the process alive."""
    for engine in list(_open_engines):
        engine._stop()
        engine._worker.join(_END_SECONDS)


atexit.register(_end_engines)


def _unfinished(jobs: Sequence[Job]) -> int:
    """Return the number of unfinished jobs."""
    return sum(not job.done for job in jobs)
