"""Many requests at once, from any thread: one worker decodes all that run together, the others wait their turn.

Knows who waits, who may run and how everything ends. Does not know how requests share a forward (request_pool), nor
how one is decoded.
"""

import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from lopa.runtime.algorithm.decoding import Step
from lopa.runtime.checked_values import whole_number
from lopa.runtime.decoder import MOST_PARALLEL, Decoder
from lopa.runtime.errors import BadInputError, EngineClosedError, QueueFullError
from lopa.runtime.generation_config import GenerationConfig
from lopa.runtime.parallel.branch_session import STALL_SECONDS
from lopa.runtime.requests.handle import RequestHandle
from lopa.runtime.requests.pool import Job
from lopa.runtime.requests.prompt_store import PROMPT_ROWS
from lopa.runtime.sessions.device_errors import failure_of_device
from lopa.runtime.text.prompt_ids import Prompt

SLOTS = 8
QUEUE_LIMIT = 64
MOST_WAITING = 10**6
MOST_PROMPT_ROWS = 2**40
"""None is allocated before there is a prompt to keep."""


class Engine:
    """Decodes the requests of any number of threads with one decoder, which nothing else uses meanwhile.

    Requests join at the next round in the order in which they came, as soon as fewer than `slots` run. A result is the
    same whatever else runs (docs/engine.md says how far). Every handle ends: with a result, with its request's own
    error, or, when the device fails, with an EngineFailedError. Closing cancels what has not ended.
    """

    def __init__(
        self,
        decoder: Decoder,
        *,
        slots: int = SLOTS,
        queue_limit: int = QUEUE_LIMIT,
        prompt_rows: int = PROMPT_ROWS,
    ) -> None:
        """`slots` requests run at once, each with a prefix cache, and `queue_limit` more may wait.

        `prompt_rows` rows of prompts are kept for requests with the same prompt (0: none; window="block_causal" only).
        The decoder stays open when the engine closes. Raises BadInputError for a number that is too small or too large.
        """
        self._slots = whole_number("slots", slots, least=1, most=MOST_PARALLEL)
        self._queue_limit = whole_number("queue_limit", queue_limit, least=0, most=MOST_WAITING)
        rows = whole_number("prompt_rows", prompt_rows, least=0, most=MOST_PROMPT_ROWS)
        self._decoder = decoder
        self._closes_decoder = False
        self._pool = decoder.pool(rows)
        self._changed = threading.Condition()
        # Under the condition's lock, from here on.
        self._waiting: list[Job] = []
        self._unfinished: set[RequestHandle] = set()
        self._closed = False
        self._failure: BaseException | None = None
        self._worker = threading.Thread(target=self._work, name="lopa-engine", daemon=True)
        self._worker.start()

    @classmethod
    def open(
        cls,
        path: Path | str,
        devices: Sequence[str] = ("cpu",),
        *,
        threads: int | None = None,
        device_timeout: float = STALL_SECONDS,
        slots: int = SLOTS,
        queue_limit: int = QUEUE_LIMIT,
        prompt_rows: int = PROMPT_ROWS,
    ) -> Self:
        """Open the bundle at `path` as Decoder.open does, with the same errors; closing the engine closes it.

        `device_timeout` as there: seconds after which one of several devices is given up.
        """
        decoder = Decoder.open(path, devices, threads=threads, device_timeout=device_timeout)
        try:
            engine = cls(decoder, slots=slots, queue_limit=queue_limit, prompt_rows=prompt_rows)
        except BadInputError:
            decoder.close()
            raise
        engine._closes_decoder = True
        return engine

    def config(self, **overrides: Any) -> GenerationConfig:
        """A config that starts from what the bundle's checkpoint was trained for."""
        return self._decoder.config(**overrides)

    @property
    def closed(self) -> bool:
        """Whether no request is taken any more: after close(), or when the device has failed."""
        return self._closed

    def submit(
        self,
        prompt: Prompt,
        config: GenerationConfig | None = None,
        *,
        deadline: float | None = None,
        drafts: bool = False,
        on_step: Callable[[Step], None] | None = None,
    ) -> RequestHandle:
        """Ask for an answer, from any thread; returns at once.

        `deadline` is in seconds from now, waiting included (the config's time_limit counts from the first round); what
        is committed by then is the result. `on_step` hears of every step on the engine's thread; what it raises ends
        the request. Raises BadInputError as Decoder.stream does and for a negative deadline, QueueFullError,
        EngineClosedError.
        """
        job = self._decoder.job(prompt, config, deadline=deadline, drafts=drafts, on_step=on_step)
        with self._changed:
            self._unfinished = {handle for handle in self._unfinished if not handle.done}
            self._check_takes_more()
            self._unfinished.add(job.handle)
            self._waiting.append(job)
            self._changed.notify_all()
        return job.handle

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
            self._pool.cancel_all()
            for job in self._waiting:  # closed, so that none is added any more
                self._pool.end_unstarted(job, "cancelled")
        except BaseException as error:
            self._fail(error)

    def _wait_for_work(self) -> bool:
        """Sleep until there is something to decode; False when the engine is closed."""
        with self._changed:
            self._changed.wait_for(lambda: self._closed or self._waiting or len(self._pool))
            return not self._closed

    def _admit(self) -> None:
        """Those who waited longest join, as many as there are slots; those who are due end without having run."""
        with self._changed:
            due = [(job, reason) for job in self._waiting if (reason := job.due) is not None]
            ended = {job for job, _ in due}
            in_time = [job for job in self._waiting if job not in ended]
            free = self._slots - len(self._pool)
            joining, self._waiting = in_time[:free], in_time[free:]
        for job, reason in due:
            self._pool.end_unstarted(job, reason)
        for job in joining:
            self._pool.add(job)

    def _fail(self, error: BaseException) -> None:
        """The device is lost, and with it every request."""
        failure = failure_of_device(self._decoder.session.device, error)
        with self._changed:
            self._closed, self._failure = True, failure
            self._waiting.clear()
            for handle in self._unfinished:
                handle.put_error(failure)
        self._pool.close()

    def _check_takes_more(self) -> None:
        """Raise EngineClosedError or QueueFullError when no request may come in."""
        if self._closed:
            why = "closed" if self._failure is None else f"closed, because {self._failure}"
            raise EngineClosedError(
                f"a request for an engine that is {why}", expected="an open engine", remedy="open another engine"
            )
        if len(self._unfinished) >= self._slots + self._queue_limit:
            raise QueueFullError(
                f"a request more, while {len(self._unfinished)} are not done",
                expected=f"at most {self._slots} that run and {self._queue_limit} that wait",
                remedy="submit again when one is done, or open the engine with a larger queue_limit",
            )
