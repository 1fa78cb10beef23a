"""The model in Triton's process: an engine, requests into it, and responses out of it as they come.

Triton's module of the backend, triton_python_backend_utils, is given by model.py of the repository: nothing here
imports it.
"""

import asyncio
import json
import threading
import traceback
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Self

from lopa.runtime.decoder import Decoder
from lopa.runtime.engine import Engine
from lopa.runtime.errors import BadInputError, PreparationStoppedError
from lopa.runtime.files.untrusted_input import refused_as_bad_input
from lopa.runtime.generation_config import GenerationConfig
from lopa.runtime.grammar.limits import GrammarLimits
from lopa.runtime.requests.handle import RequestHandle
from lopa.runtime.requests.reservation import Reservation
from lopa.runtime.requests.result import DoneEvent
from lopa.runtime.text.prompt_ids import Prompt, PromptRequest
from lopa.serve.limits import ServeLimits
from lopa.serve.openai.config import config_of_options, errors_of_grammar
from lopa.serve.openai.prompt_error import LENGTH, errors_of_prompts
from lopa.serve.triton.asked import AskedText, asked_of_inputs, input_value, parameters_of_text
from lopa.serve.triton.groups import devices_of_instance
from lopa.serve.triton.outputs import outputs_of_events, outputs_of_result
from lopa.serve.triton.sender import Sender
from lopa.serve.triton.settings import (
    devices_of_parameters,
    kinds_of_config,
    parameters_of_config,
    settings_of_parameters,
)
from lopa.serve.triton.told import CANCELLED, STOPPED, told_of_error
from lopa.serve.warm_up import warm_up

_PREPARING = 2
"""Threads in which prompts become ids, so that a long one holds up nobody."""
_LOOK_SECONDS = 0.2
"""Between two questions whether clients have cancelled: nobody tells a model."""


class TritonModel:
    """One instance of a model: one engine, whose requests are answered on a thread of their own."""

    def __init__(self, decoder: Decoder, engine: Engine, limits: ServeLimits, backend: Any) -> None:
        self._decoder, self._engine, self._limits, self._backend = decoder, engine, limits, backend
        self._threads = ThreadPoolExecutor(_PREPARING, "lopa-triton")
        self._grammar_threads = ThreadPoolExecutor(GrammarLimits().processes, "lopa-grammar")
        self._open: dict[Sender, RequestHandle | Reservation] = {}
        """Requests that are prepared, wait or run; of the loop's thread."""
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="lopa-triton-answers", daemon=True)
        self._thread.start()
        self._looking = asyncio.run_coroutine_threadsafe(self._look_for_cancels(), self._loop)

    @classmethod
    def open(cls, args: Mapping[str, str], backend: Any) -> Self:
        """What Triton's `initialize` is given, and its module. Raises BadInputError and MissingBackendError."""
        config = json.loads(args["model_config"])
        parameters = parameters_of_config(config)
        settings = settings_of_parameters(parameters)
        devices = devices_of_instance(
            args["model_instance_name"],
            int(args["model_instance_device_id"]),
            kinds_of_config(config),
            devices_of_parameters(parameters),
        )
        path = Path(args["model_repository"], args["model_version"], settings.bundle)
        decoder = _decoder_of_bundle(path, devices, settings.threads, settings.device_timeout)
        try:
            settings.limits.check_defaults(decoder.bundle.manifest.defaults)
            warm_up(decoder, backend.Logger.log_warn)
            engine = Engine(decoder, max_num_seqs=settings.max_num_seqs, queue_limit=settings.queue_limit)
        except BaseException:
            decoder.close()
            raise
        backend.Logger.log_info(f"{args['model_instance_name']}: {path} on {decoder.session.device}")
        return cls(decoder, engine, settings.limits, backend)

    def execute(self, requests: Sequence[Any]) -> None:
        """Take requests, each of which is answered by its response sender, and return at once."""
        for request in requests:
            sender = Sender(request.get_response_sender(), self._backend)
            places = ExitStack()
            try:
                reservation = places.enter_context(self._engine.reserved(1))  # before anything is done for it
                inputs = {each.name(): input_value(each.name(), each.as_numpy()) for each in request.inputs()}
                parameters = parameters_of_text(request.parameters())
                asked = asked_of_inputs(inputs, parameters, self._limits, self._engine.manifest.defaults)
                answered = self._answered(asked, reservation, places, sender)
                asyncio.run_coroutine_threadsafe(answered, self._loop)
            except Exception as error:
                places.close()
                self._tell(sender, error)

    def close(self) -> None:
        """End the engine; who still waits for an answer is told that there is none."""
        self._engine.close()
        asyncio.run_coroutine_threadsafe(self._all_answered(), self._loop).result()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()
        self._threads.shutdown()
        self._grammar_threads.shutdown()
        self._decoder.close()

    async def _answered(self, asked: AskedText, reservation: Reservation, places: ExitStack, sender: Sender) -> None:
        try:
            self._open[sender] = reservation
            try:
                config = config_of_options(self._engine.config, self._engine.plan, asked.options)
                threads = self._grammar_threads if config.has_grammar else self._threads
                with places:
                    handle = await self._loop.run_in_executor(threads, self._submitted, asked, config, reservation)
                self._open[sender] = handle
                await self._sent(handle, asked.stream, sender)
            finally:
                del self._open[sender]
        except PreparationStoppedError:
            sender.fail(CANCELLED if sender.cancelled else STOPPED)
        except Exception as error:
            self._tell(sender, error)

    def _submitted(self, asked: AskedText, config: GenerationConfig, reservation: Reservation) -> RequestHandle:
        """On a thread of its own, since templates, tokenizers and grammars take their time."""
        engine = self._engine
        with (
            errors_of_prompts(asked.param, asked.options.params.get(LENGTH, LENGTH)),
            errors_of_grammar(asked.options),
            refused_as_bad_input("it cannot be used", expected="text that the model reads", remedy="correct it"),
        ):
            prompt: Prompt = (
                engine.prompt_from_messages(asked.messages, special_tokens=config.special_tokens)
                if asked.prompt is None
                else asked.prompt
            )
            (handle,) = engine.submit_many(
                [PromptRequest(prompt, config)], deadline=asked.deadline, drafts=asked.drafts, reservation=reservation
            )
        return handle

    async def _sent(self, handle: RequestHandle, stream: bool, sender: Sender) -> None:
        text_of_ids = self._decoder.tokenizer.decode
        async for events in handle.batches():
            last = events[-1]
            if isinstance(last, DoneEvent):
                if last.result.stop_reason == "cancelled":
                    sender.fail(CANCELLED if sender.cancelled else STOPPED)
                elif stream:
                    sender.end(outputs_of_events(events, text_of_ids))
                else:
                    sender.end(outputs_of_result(last.result, text_of_ids))
            elif stream:
                sender.send(outputs_of_events(events, text_of_ids))

    def _tell(self, sender: Sender, error: Exception) -> None:
        told = told_of_error(error)
        if told.code == "INTERNAL":
            self._backend.Logger.log_error("".join(traceback.format_exception(error)))
        sender.fail(told)

    async def _look_for_cancels(self) -> None:
        while True:
            for sender, work in list(self._open.items()):
                if not work.cancelled and sender.cancelled:
                    work.cancel()
                    self._backend.Logger.log_verbose("a client has cancelled its request")
            await asyncio.sleep(_LOOK_SECONDS)

    async def _all_answered(self) -> None:
        """Once the engine has ended, so does every request."""
        self._looking.cancel()
        others = asyncio.all_tasks() - {asyncio.current_task()}
        await asyncio.gather(*others, return_exceptions=True)


def _decoder_of_bundle(path: Path, devices: Sequence[str], threads: int | None, timeout: float) -> Decoder:
    """Raises as Decoder.open does, with a remedy that an operator of Triton has."""
    try:
        return Decoder.open(path, devices, threads=threads, device_timeout=timeout, grammar_limits=GrammarLimits())
    except BadInputError as error:
        remedy = f"{error.remedy}; or correct config.pbtxt, or write the model again with `lopa-export triton`"
        raise BadInputError(error.received, expected=error.expected, remedy=remedy) from error
