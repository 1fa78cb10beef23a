"""Submission of a checked request to the engine: all its choices or none."""

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from starlette.types import Receive

from lopa.runtime.decoding.decoding import Step
from lopa.runtime.engine import Engine
from lopa.runtime.errors import PreparationStoppedError
from lopa.runtime.files.untrusted_input import errors_as_bad_input
from lopa.runtime.generation_config import GenerationConfig
from lopa.runtime.requests.handle import RequestHandle
from lopa.runtime.requests.reservation import Reservation
from lopa.runtime.text.prompt_ids import Prompt, PromptRequest
from lopa.serve.answering.capacity import check_capacity
from lopa.serve.answering.service import Service
from lopa.serve.http.disconnect import watch_disconnect
from lopa.serve.openai.body_config import config_from_options, grammar_errors
from lopa.serve.openai.prompt_error import number_prompt_errors, prompt_errors
from lopa.serve.openai.request import CompletionRequest

Handles = tuple[RequestHandle, ...]
_SEEDS = 2**63


async def handles_for_request(
    service: Service, requested: CompletionRequest, on_step: Callable[[int, Step], None] | None, receive: Receive
) -> Handles | None:
    """Return a handle per choice: all choices of the first prompt, then of the second.

    Returns None when the client disconnects before that, which stops the preparation. Raises ApiError for a full engine
    before any prompt is read, and the BadInputErrors of submit_many.
    """
    engine = service.engine
    config = config_from_options(engine.config, engine.plan, requested.options)
    samples = engine.plan(config).temperature > 0
    decoded_once = not samples and on_step is None
    count = _count_distinct(requested.prompts) if decoded_once else (len(requested.prompts) or 1) * requested.copies
    check_capacity(engine, count)
    threads = service.grammar_threads if config.has_grammar else service.threads
    with engine.reserved(count) as reservation, watch_disconnect(receive) as disconnect:
        loop = asyncio.get_running_loop()
        preparing = loop.run_in_executor(threads, _submit, engine, requested, config, samples, on_step, reservation)
        futures: list[asyncio.Future[Any]] = [preparing, disconnect]
        try:
            await asyncio.wait(futures, return_when=asyncio.FIRST_COMPLETED)
        finally:
            if not preparing.done():
                reservation.cancel()
        try:
            return await preparing
        except PreparationStoppedError:
            return None


def _count_distinct(prompts: Sequence[Prompt]) -> int:
    """Return the number of distinct prompts; a chat counts as one."""
    return len({prompt if isinstance(prompt, str) else tuple(prompt) for prompt in prompts}) or 1


def _submit(
    engine: Engine,
    requested: CompletionRequest,
    config: GenerationConfig,
    samples: bool,
    on_step: Callable[[int, Step], None] | None,
    reservation: Reservation,
) -> Handles:
    """Prepare and submit the requests. It runs on a thread, since templates and tokenizers take time."""
    with (
        prompt_errors(requested.param, requested.length_param),
        grammar_errors(requested.options),
        errors_as_bad_input(
            "the prompt cannot be read", expected="text or token IDs of this model", remedy="correct the prompt"
        ),
        number_prompt_errors(len(requested.prompts), requested.copies),
    ):
        prompts = requested.prompts or (
            engine.prompt_from_messages(requested.messages, special_tokens=config.special_tokens),
        )
        # Sampled choices get distinct seeds. Greedy choices are equal, so the engine decodes them once.
        configs = [_with_shifted_seed(config, copy) if samples else config for copy in range(requested.copies)]
        requests = [PromptRequest(prompt, each) for prompt in prompts for each in configs]
        return engine.submit_many(
            requests,
            deadline=requested.deadline,
            drafts=on_step is not None,
            on_step=on_step,
            reservation=reservation,
        )


def _with_shifted_seed(config: GenerationConfig, copy: int) -> GenerationConfig:
    assert config.seed is not None
    return replace(config, seed=(config.seed + copy) % _SEEDS)
