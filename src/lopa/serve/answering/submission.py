"""From what a body asks for to requests of the engine, all of them or none."""

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from starlette.types import Receive

from lopa.runtime.decoding.decoding import Step
from lopa.runtime.engine import Engine
from lopa.runtime.errors import PreparationStoppedError
from lopa.runtime.files.untrusted_input import refused_as_bad_input
from lopa.runtime.generation_config import GenerationConfig
from lopa.runtime.requests.handle import RequestHandle
from lopa.runtime.requests.reservation import Reservation
from lopa.runtime.text.prompt_ids import Prompt, PromptRequest
from lopa.serve.answering.places import check_places
from lopa.serve.answering.service import Service
from lopa.serve.http.departure import departure
from lopa.serve.openai.config import config_of_options, errors_of_grammar
from lopa.serve.openai.prompt_error import errors_of_prompts, numbers_of_prompts
from lopa.serve.openai.request import AskedRequest

Handles = tuple[RequestHandle, ...]
_SEEDS = 2**63


async def handles_of_request(
    service: Service, asked: AskedRequest, on_step: Callable[[int, Step], None] | None, receive: Receive
) -> Handles | None:
    """Return a handle for each answer: all answers to the first prompt, then to the second.

    None when the client has gone meanwhile, which stops the preparation. Raises ApiError where there is no place,
    before any prompt is read, and BadInputError as submit_many does.
    """
    engine = service.engine
    config = config_of_options(engine.config, engine.plan, asked.options)
    draws = engine.plan(config).temperature > 0
    decoded_once = not draws and on_step is None
    count = _different(asked.prompts) if decoded_once else (len(asked.prompts) or 1) * asked.copies
    check_places(engine, count)
    threads = service.grammar_threads if config.has_grammar else service.threads
    with engine.reserved(count) as reservation, departure(receive) as gone:
        loop = asyncio.get_running_loop()
        preparing = loop.run_in_executor(threads, _submitted, engine, asked, config, draws, on_step, reservation)
        either: list[asyncio.Future[Any]] = [preparing, gone]
        try:
            await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
        finally:
            if not preparing.done():
                reservation.cancel()
        try:
            return await preparing
        except PreparationStoppedError:
            return None


def _different(prompts: Sequence[Prompt]) -> int:
    """Of a list of prompts, or of the one of a chat."""
    return len({prompt if isinstance(prompt, str) else tuple(prompt) for prompt in prompts}) or 1


def _submitted(
    engine: Engine,
    asked: AskedRequest,
    config: GenerationConfig,
    draws: bool,
    on_step: Callable[[int, Step], None] | None,
    reservation: Reservation,
) -> Handles:
    """On a thread of its own, since templates and tokenizers take their time."""
    with (
        errors_of_prompts(asked.param, asked.length_param),
        errors_of_grammar(asked.options),
        refused_as_bad_input("the prompt cannot be used", expected="text that the model reads", remedy="correct it"),
        numbers_of_prompts(len(asked.prompts), asked.copies),
    ):
        prompts = asked.prompts or (engine.prompt_from_messages(asked.messages, special_tokens=config.special_tokens),)
        # Drawn answers have seeds of their own; greedy ones are the same, and decoded once.
        configs = [_with_own_seed(config, copy) if draws else config for copy in range(asked.copies)]
        requests = [PromptRequest(prompt, each) for prompt in prompts for each in configs]
        return engine.submit_many(
            requests,
            deadline=asked.deadline,
            drafts=on_step is not None,
            on_step=on_step,
            reservation=reservation,
        )


def _with_own_seed(config: GenerationConfig, copy: int) -> GenerationConfig:
    assert config.seed is not None
    return replace(config, seed=(config.seed + copy) % _SEEDS)
