"""Submission of a checked request to the engine: all its choices or none."""

import asyncio
import contextvars
from collections.abc import Callable, Mapping
from typing import Any

from starlette.types import Receive

from lopa.runtime.chat.chat import Chat
from lopa.runtime.chat.prepared_chat import ids_from_chat
from lopa.runtime.decoding.step import Step
from lopa.runtime.errors import PreparationStoppedError
from lopa.runtime.generation_config import ResolvedOptions
from lopa.runtime.requests.admission import Reservation
from lopa.runtime.requests.handle import RequestHandle
from lopa.serve.answering.service import Service
from lopa.serve.http.api_error import ApiError
from lopa.serve.http.events import watch_disconnect
from lopa.serve.openai.body_requests import body_errors, options_of_body, requests_from_body
from lopa.serve.openai.request import AnswerRequest
from lopa.serve.protocols.endpoints import ENDPOINTS
from lopa.serve.tracing.request_trace import trace_handles, trace_request

Handles = tuple[RequestHandle, ...]
"""A handle per choice: all choices of the first prompt, then of the second."""


async def submit_request(
    service: Service, requested: AnswerRequest, on_step: Callable[[int, Step], None] | None, receive: Receive
) -> Handles | None:
    """Submit a request, which runs or waits then, and return the handles of its choices.

    Returns None when the client disconnects before that, which stops the preparation. Raises QueueFullError and
    EngineClosedError before any prompt is read, ApiError for too many choices, and the BadInputErrors of submit_many.
    """
    engine, chat = service.engine, requested.chat
    resolved = options_of_body(engine.decoder, requested.options)
    trace_request(requested, resolved.config, service.name)
    decoded_once = not resolved.params.temperature and on_step is None
    distinct = len({(type(each), repr(each)) for each in requested.prompts})
    count = distinct if decoded_once else len(requested.prompts) * requested.copies
    status = engine.status
    if count > (places := status.max_num_seqs + status.queue_limit):  # waiting would not help
        raise ApiError(400, f"{count} choices requested; this server runs and queues at most {places}", param="n")
    has_grammar = resolved.config.has_grammar or (chat is not None and chat.may_call)
    threads = service.grammar_threads if has_grammar else service.threads
    with engine.reserved(count) as reservation, watch_disconnect(receive) as disconnect:
        loop = asyncio.get_running_loop()
        preparing = loop.run_in_executor(
            threads,
            contextvars.copy_context().run,  # its log lines have the request's ID
            _submit,
            service,
            requested,
            resolved,
            on_step,
            reservation,
        )
        futures: list[asyncio.Future[Any]] = [preparing, disconnect]
        try:
            await asyncio.wait(futures, return_when=asyncio.FIRST_COMPLETED)
        finally:
            if not preparing.done():
                reservation.cancel()
        try:
            handles = await preparing
        except PreparationStoppedError:
            return None
        trace_handles(handles)
        return handles


def _submit(
    service: Service,
    requested: AnswerRequest,
    resolved: ResolvedOptions,
    on_step: Callable[[int, Step], None] | None,
    reservation: Reservation,
) -> Handles:
    """Prepare and submit the requests. It runs on a thread, since templates and tokenizers take time."""
    with body_errors(requested):
        return service.engine.submit_many(
            requests_from_body(requested, resolved, service.call_format),
            deadline=requested.deadline,
            drafts=on_step is not None,
            on_step=on_step,
            reservation=reservation,
        )


def read_request(service: Service, path: str, body: Mapping[str, Any]) -> AnswerRequest:
    """Return the request in `body` to the endpoint `path`. Raises FieldError, and ApiError for an unknown model."""
    requested = ENDPOINTS[path].request(body, service.limits, service.engine.decoder.bundle.manifest.defaults)
    service.check_model(requested.model)
    return requested


def prompt_ids(service: Service, requested: AnswerRequest, *, add_bos: bool = True) -> list[int]:
    """Return the tokens of a chat or of the first text. It takes time, so it runs on a thread."""
    decoder, (prompt, *_) = service.engine.decoder, requested.prompts
    with body_errors(requested):
        config = options_of_body(decoder, requested.options).config
        if isinstance(prompt, Chat):
            return ids_from_chat(decoder.tokenizer, prompt, config)
        assert isinstance(prompt, str)
        add_bos = add_bos and decoder.bundle.manifest.decoding.add_bos
        return decoder.tokenizer.encode(prompt, add_bos=add_bos, special_tokens=config.special_tokens)
