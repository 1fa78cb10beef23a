"""Submission of a checked request to the engine: all its choices or none."""

import asyncio
import contextvars
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from starlette.types import Receive

from lopa.runtime.decoding.decoding import Step
from lopa.runtime.errors import PreparationStoppedError
from lopa.runtime.files.untrusted_input import errors_as_bad_input
from lopa.runtime.generation_config import GenerationConfig
from lopa.runtime.requests.handle import RequestHandle
from lopa.runtime.requests.reservation import Reservation
from lopa.runtime.text.prompt_ids import Prompt, PromptRequest
from lopa.runtime.text.text_with_holes import TextWithHoles
from lopa.serve.answering.capacity import check_capacity
from lopa.serve.answering.chat_answer import chat_answer, chat_prompt, tool_grammar_errors
from lopa.serve.answering.service import Service
from lopa.serve.chat.answer_parser import AnswerForm
from lopa.serve.http.disconnect import watch_disconnect
from lopa.serve.openai.body_config import choice_errors, config_from_options, grammar_errors
from lopa.serve.openai.prompt_error import LENGTH, number_prompt_errors, prompt_errors
from lopa.serve.protocols.answer_request import AnswerRequest
from lopa.serve.tracing.request_trace import trace_handles, trace_request

Handles = tuple[RequestHandle, ...]
_SEEDS = 2**63


@dataclass(frozen=True)
class Submission:
    """A request that runs or waits."""

    handles: Handles
    """A handle per choice: all choices of the first prompt, then of the second."""
    form: AnswerForm
    """Form in which the answers are read."""
    prompt_tokens: int
    """Tokens of a chat's prompt; 0 for completions."""


async def submission_of_request(
    service: Service, requested: AnswerRequest, on_step: Callable[[int, Step], None] | None, receive: Receive
) -> Submission | None:
    """Return the running request.

    Returns None when the client disconnects before that, which stops the preparation. Raises ApiError for a full engine
    before any prompt is read, and the BadInputErrors of submit_many.
    """
    engine = service.engine
    config = config_from_options(engine.config, engine.plan, requested.options)
    trace_request(requested, config, service.name)
    samples = engine.plan(config).temperature > 0
    decoded_once = not samples and on_step is None
    count = _count_distinct(requested.prompts) if decoded_once else (len(requested.prompts) or 1) * requested.copies
    check_capacity(engine, count)
    has_grammar = config.has_grammar or requested.chat.callable_tools is not None
    threads = service.grammar_threads if has_grammar else service.threads
    with engine.reserved(count) as reservation, watch_disconnect(receive) as disconnect:
        loop = asyncio.get_running_loop()
        preparing = loop.run_in_executor(
            threads,
            contextvars.copy_context().run,  # its log lines have the request's ID
            _submit,
            service,
            requested,
            config,
            samples,
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
            submission = await preparing
        except PreparationStoppedError:
            return None
        trace_handles(submission.handles)
        return submission


def _count_distinct(prompts: Sequence[Prompt]) -> int:
    """Return the number of distinct prompts; a chat counts as one."""
    known = (prompt if isinstance(prompt, str | TextWithHoles) else tuple(prompt) for prompt in prompts)
    return len(set(known)) or 1


def _submit(
    service: Service,
    requested: AnswerRequest,
    config: GenerationConfig,
    samples: bool,
    on_step: Callable[[int, Step], None] | None,
    reservation: Reservation,
) -> Submission:
    """Prepare and submit the requests. It runs on a thread, since templates and tokenizers take time."""
    with (
        prompt_errors(requested.param, requested.length_param),
        grammar_errors(requested.options),
        choice_errors(requested.options),
        tool_grammar_errors(requested),
        errors_as_bad_input(
            "the prompt cannot be read", expected="text or token IDs of this model", remedy="correct the prompt"
        ),
        number_prompt_errors(len(requested.prompts), requested.copies),
    ):
        prompts, form, chat_tokens = requested.prompts, AnswerForm(), 0
        if not prompts:
            answer = chat_answer(service.engine, requested, config, service.call_format)
            prompts, config, form, chat_tokens = (answer.ids,), answer.config, answer.form, len(answer.ids)
        # Sampled choices get distinct seeds. Greedy choices are equal, so the engine decodes them once.
        configs = [_with_shifted_seed(config, copy) if samples else config for copy in range(requested.copies)]
        shortens = LENGTH not in requested.options.params
        requests = [
            PromptRequest(prompt, each, requested.cache_salt, shortens) for prompt in prompts for each in configs
        ]
        handles = service.engine.submit_many(
            requests,
            deadline=requested.deadline,
            drafts=on_step is not None,
            on_step=on_step,
            reservation=reservation,
        )
        return Submission(handles, form, chat_tokens)


def prompt_tokens(service: Service, requested: AnswerRequest) -> int:
    """Return the number of tokens of a chat's prompt. It takes time, so it runs on a thread."""
    with prompt_errors(requested.param, requested.length_param):
        config = config_from_options(service.engine.config, service.engine.plan, requested.options)
        return len(chat_prompt(service.engine, requested, config))


def _with_shifted_seed(config: GenerationConfig, copy: int) -> GenerationConfig:
    assert config.seed is not None
    return replace(config, seed=(config.seed + copy) % _SEEDS)
