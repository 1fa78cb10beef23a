"""Requests for a decoder from the body of an HTTP request, and their errors in the client's own field names."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

from lopa.runtime.chat.call_format import CallFormat
from lopa.runtime.chat.chat import REASONING, Chat
from lopa.runtime.errors import (
    BadInputError,
    ChoicesRefusedError,
    EngineClosedError,
    FieldError,
    GrammarRefusedError,
    MissingBackendError,
    PromptTooLongError,
    QueueFullError,
    errors_as_bad_input,
)
from lopa.runtime.generation_config import GenerationConfig, ResolvedOptions
from lopa.runtime.options import GRAMMARS
from lopa.runtime.requests.request import Request
from lopa.serve.openai.body_config import GrammarUnsupportedError
from lopa.serve.openai.body_options import LOPA_FIELD
from lopa.serve.openai.prompt_error import field_error_from_long_prompt
from lopa.serve.openai.request import AnswerRequest

_SEEDS = 2**63


def requests_from_body(
    requested: AnswerRequest, resolved: ResolvedOptions, call_format: CallFormat | None = None
) -> list[Request]:
    """Return a request for each choice: all choices of the first prompt, then of the second.

    `call_format` is the operator's choice of a format of tool calls, or None to recognise it from the template.
    """
    # Sampled choices get distinct seeds. Greedy choices are equal, so an engine decodes them once.
    configs = [
        _with_shifted_seed(resolved.config, copy) if resolved.params.temperature else resolved.config
        for copy in range(requested.copies)
    ]
    prompts = [
        replace(each, call_format=call_format) if isinstance(each, Chat) and call_format is not None else each
        for each in requested.prompts
    ]
    return [
        Request(prompt, config, requested.cache_salt, requested.shortens) for prompt in prompts for config in configs
    ]


@contextmanager
def body_errors(requested: AnswerRequest) -> Iterator[None]:
    """Turn errors of the block into FieldErrors that use the body's field names.

    A missing grammar library becomes GrammarUnsupportedError.
    """
    try:
        with errors_as_bad_input(
            "the prompt cannot be read", expected="text or token IDs of this model", remedy="correct the prompt"
        ):
            yield
    except (QueueFullError, EngineClosedError):
        raise
    except BadInputError as error:
        raise _field_error(requested, _without_request_number(requested, error)) from error
    except MissingBackendError as error:  # only the grammar library can be missing: the device is open
        raise GrammarUnsupportedError from error


@contextmanager
def choice_errors(requested: AnswerRequest) -> Iterator[None]:
    """Turn errors about the choices, found while they are scored, into a FieldError."""
    try:
        yield
    except ChoicesRefusedError as error:
        raise _field_error(requested, error) from error


def _without_request_number(requested: AnswerRequest, error: BadInputError) -> BadInputError:
    """Return an error of submit_many with the number of the prompt instead of the request; one prompt has no number."""
    number, cause = error.prompt_number, error.__cause__
    if number is None or not isinstance(cause, BadInputError):
        return error
    if len(requested.prompts) == 1:
        return cause
    return cause.with_received(f"prompt {number // requested.copies} (counted from 0): {cause.received}")


def _field_error(requested: AnswerRequest, error: BadInputError) -> FieldError:
    """Return an error of the field that has to change, by the body's name."""
    params = requested.options.params
    param, received, remedy = requested.param, error.received, error.remedy
    if isinstance(error, FieldError):
        renamed = error.with_received(received)
        renamed.param = {**params, REASONING: requested.reasoning_param}.get(error.param, error.param)
        return renamed
    if isinstance(error, PromptTooLongError):
        return field_error_from_long_prompt(error, requested.param, requested.length_param)
    if isinstance(error, GrammarRefusedError) and requested.chat is not None and requested.chat.may_call:
        param, received = "tools", f"the grammar of the tools is not usable: {received}"
        remedy = "simplify the schemas of the tools, or raise the number of tokens"
    elif isinstance(error, GrammarRefusedError):
        param = next((params[name] for name in GRAMMARS if name in params), LOPA_FIELD)
    elif isinstance(error, ChoicesRefusedError):
        param = params.get("choices", LOPA_FIELD)
    return FieldError(param, received, expected=error.expected, remedy=remedy)


def _with_shifted_seed(config: GenerationConfig, copy: int) -> GenerationConfig:
    assert config.seed is not None
    return replace(config, seed=(config.seed + copy) % _SEEDS)
