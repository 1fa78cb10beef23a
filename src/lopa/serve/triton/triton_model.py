"""Model in Triton's process: an engine, its requests, and responses as they arrive.

model.py of the repository passes in Triton's backend module, triton_python_backend_utils. Nothing here imports it.
"""

import asyncio
import json
import threading
import traceback
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any, Self

from lopa.runtime.engine import Engine
from lopa.runtime.errors import BadInputError, PreparationStoppedError
from lopa.runtime.generation_config import ResolvedOptions
from lopa.runtime.grammar.grammar_limits import GrammarLimits
from lopa.runtime.requests.admission import Reservation
from lopa.runtime.requests.handle import RequestHandle
from lopa.runtime.requests.result import DoneEvent
from lopa.serve.openai.body_requests import body_errors, options_of_body, requests_from_body
from lopa.serve.openai.request import AnswerRequest
from lopa.serve.opened_engine import opened_engine
from lopa.serve.serve_limits import ServeLimits
from lopa.serve.triton.config_text import (
    BUNDLE,
    devices_from_parameters,
    kinds_from_config,
    parameters_from_config,
    settings_from_parameters,
)
from lopa.serve.triton.groups import devices_for_instance
from lopa.serve.triton.sender import (
    CANCELLED,
    STOPPED,
    Sender,
    error_reply_from_error,
    outputs_from_events,
    outputs_from_result,
)
from lopa.serve.triton.triton_request import input_value, parameters_from_text, request_from_inputs

_PREPARATION_THREADS = 2
"""Threads that tokenize prompts, so that a long prompt does not delay other requests."""
_POLL_SECONDS = 0.2
"""Seconds between two checks for cancelled requests, since Triton does not report them to a model."""


class TritonModel:
    """One instance of a model: an engine whose requests are answered on a separate thread."""

    def __init__(self, engine: Engine, limits: ServeLimits, backend: Any, opened: ExitStack) -> None:
        """Store the engine and limits. Closing the model closes `opened`."""
        self._engine, self._limits, self._backend, self._opened = engine, limits, backend, opened
        self._threads = ThreadPoolExecutor(_PREPARATION_THREADS, "lopa-triton")
        self._grammar_threads = ThreadPoolExecutor(GrammarLimits().processes, "lopa-grammar")
        self._open: dict[Sender, RequestHandle | Reservation] = {}
        """Requests in preparation, waiting or running. Only the loop's thread uses it."""
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="lopa-triton-answers", daemon=True)
        self._thread.start()
        self._cancel_poll = asyncio.run_coroutine_threadsafe(self._poll_cancels(), self._loop)

    @classmethod
    def open(cls, args: Mapping[str, str], backend: Any) -> Self:
        """Open the model with the arguments of Triton's `initialize` and its backend module. Raises BadInputError and
        MissingBackendError."""
        config = json.loads(args["model_config"])
        parameters = parameters_from_config(config)
        settings = settings_from_parameters(parameters)
        devices = devices_for_instance(
            args["model_instance_name"],
            int(args["model_instance_device_id"]),
            kinds_from_config(config),
            devices_from_parameters(parameters),
        )
        settings = replace(settings, devices=devices)
        path = Path(args["model_repository"], args["model_version"], parameters.get(BUNDLE, BUNDLE))
        with ExitStack() as cleanup:
            try:
                decoder, engine = cleanup.enter_context(opened_engine(path, settings, backend.Logger.log_warn))
            except BadInputError as error:
                remedy = f"{error.remedy}, correct config.pbtxt or rewrite the model with `lopa-export triton`"
                raise error.with_remedy(remedy) from error
            backend.Logger.log_info(f"{args['model_instance_name']}: {path} on {decoder.session.device}")
            return cls(engine, settings, backend, cleanup.pop_all())

    def execute(self, requests: Sequence[Any]) -> None:
        """Accept requests and return at once. Response senders answer them later."""
        for request in requests:
            sender = Sender(request.get_response_sender(), self._backend)
            cleanup = ExitStack()
            try:
                reservation = cleanup.enter_context(self._engine.reserved(1))  # reserve before other work
                inputs = {each.name(): input_value(each.name(), each.as_numpy()) for each in request.inputs()}
                parameters = parameters_from_text(request.parameters())
                defaults = self._engine.decoder.bundle.manifest.defaults
                requested = request_from_inputs(inputs, parameters, self._limits, defaults)
                answer = self._answer(requested, reservation, cleanup, sender)
                asyncio.run_coroutine_threadsafe(answer, self._loop)
            except Exception as error:
                cleanup.close()
                self._send_error(sender, error)

    def close(self) -> None:
        """Close the engine. Requests that are still open get an error."""
        self._engine.close()
        asyncio.run_coroutine_threadsafe(self._wait_for_answers(), self._loop).result()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()
        self._threads.shutdown()
        self._grammar_threads.shutdown()
        self._opened.close()

    async def _answer(
        self, requested: AnswerRequest, reservation: Reservation, cleanup: ExitStack, sender: Sender
    ) -> None:
        try:
            self._open[sender] = reservation
            try:
                resolved = options_of_body(self._engine.decoder, requested.options)
                threads = self._grammar_threads if resolved.config.has_grammar else self._threads
                with cleanup:
                    handle = await self._loop.run_in_executor(threads, self._submit, requested, resolved, reservation)
                self._open[sender] = handle
                await self._send_events(handle, requested.stream is not None, sender)
            finally:
                del self._open[sender]
        except PreparationStoppedError:
            sender.fail(CANCELLED if sender.cancelled else STOPPED)
        except Exception as error:
            self._send_error(sender, error)

    def _submit(self, requested: AnswerRequest, resolved: ResolvedOptions, reservation: Reservation) -> RequestHandle:
        """Prepare and submit the request. It runs on a thread, since templates, tokenizers and grammars take time."""
        with body_errors(requested):
            (handle,) = self._engine.submit_many(
                requests_from_body(requested, resolved),
                deadline=requested.deadline,
                drafts=requested.stream is not None and requested.stream.drafts,
                reservation=reservation,
            )
        return handle

    async def _send_events(self, handle: RequestHandle, stream: bool, sender: Sender) -> None:
        decode_ids = self._engine.decoder.tokenizer.decode
        async for events in handle.batches():
            last = events[-1]
            if isinstance(last, DoneEvent):
                if last.result.stop_reason == "cancelled":
                    sender.fail(CANCELLED if sender.cancelled else STOPPED)
                elif stream:
                    sender.end(outputs_from_events(events, decode_ids))
                else:
                    sender.end(outputs_from_result(last.result, decode_ids))
            elif stream:
                sender.send(outputs_from_events(events, decode_ids))

    def _send_error(self, sender: Sender, error: Exception) -> None:
        reply = error_reply_from_error(error)
        if reply.code == "INTERNAL":
            self._backend.Logger.log_error("".join(traceback.format_exception(error)))
        sender.fail(reply)

    async def _poll_cancels(self) -> None:
        while True:
            for sender, work in list(self._open.items()):
                if not work.cancelled and sender.cancelled:
                    work.cancel()
                    self._backend.Logger.log_verbose("request cancelled by its client")
            await asyncio.sleep(_POLL_SECONDS)

    async def _wait_for_answers(self) -> None:
        """Wait until every request has been answered; call it after the engine was closed."""
        self._cancel_poll.cancel()
        others = asyncio.all_tasks() - {asyncio.current_task()}
        await asyncio.gather(*others, return_exceptions=True)
