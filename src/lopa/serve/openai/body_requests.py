"""Options and requests for a decoder from the body of an HTTP request; errors have the client's own field names."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

from lopa.runtime.chat.call_format import CallFormat
from lopa.runtime.chat.chat import REASONING, Chat
from lopa.runtime.contract import TOP_K
from lopa.runtime.decoder import Decoder
from lopa.runtime.errors import (
    BadInputError,
    ChoicesRefusedError,
    EngineClosedError,
    FieldError,
    GrammarRefusedError,
    MissingBackendError,
    NonFiniteAnswerError,
    PromptTooLongError,
    QueueFullError,
    ResourceExhaustedError,
)
from lopa.runtime.generation_config import OPTIONS, GenerationConfig, ResolvedOptions
from lopa.runtime.options import GRAMMARS
from lopa.runtime.requests.request import Request
from lopa.serve.openai.body_options import LENGTH, LOPA_FIELD, BodyOptions, replace_words
from lopa.serve.openai.request import AnswerRequest


class GrammarUnsupportedError(Exception):
    """Error of a server without the grammar library. Clients receive no further details."""

    def __init__(self) -> None:
        super().__init__("this server does not support structured output; remove the schema, regex or grammar")


Resolve = Callable[[GenerationConfig], ResolvedOptions]
"""Function such as Engine.resolve."""


def options_of_body(decoder: Decoder, options: BodyOptions) -> ResolvedOptions:
    """Return the options of a body. Raises FieldError for an invalid value.

    Without logits, a field top_k for all candidates or more than there are becomes their number, which the reply
    names. Chat clients send 40 or 50 with each request.
    """
    with option_errors(decoder.resolve, options):
        config = GenerationConfig.from_mapping(options.values)
        if not decoder.bundle.manifest.with_logits and options.params.get("top_k") == "top_k":
            config = replace(config, top_k=min(config.top_k or TOP_K, TOP_K))
        return decoder.resolve(config)


@contextmanager
def option_errors(resolve: Resolve, options: BodyOptions) -> Iterator[None]:
    """Turn errors about options into a FieldError that uses the client's field names."""
    try:
        yield
    except BadInputError as error:
        invalid = _invalid_option(resolve, options)
        if invalid is None:
            raise error.of_field(LOPA_FIELD) from error
        param = options.params[invalid]
        names = {} if param.endswith(invalid) else {invalid: param}
        raise error.of_field(param, lambda text: replace_words(text, names)) from error


def _invalid_option(resolve: Resolve, options: BodyOptions) -> str | None:
    """Return the first option with an invalid value, or otherwise one that is invalid among defaults.

    If there is none, two options exclude each other. It is then the last one without which the others are valid.
    """
    given, names = options.values, tuple(options.params)
    for check in (vars, resolve):
        for name in names:
            if not _is_valid(check, {name: given[name]}):
                return name
    others = ({other: given[other] for other in given if other != name} for name in reversed(names))
    found = (name for name, rest in zip(reversed(names), others, strict=True) if _is_valid(resolve, rest))
    return next(found, None)


def _is_valid(check: Callable[[GenerationConfig], object], options: Mapping[str, Any]) -> bool:
    try:
        check(GenerationConfig.from_mapping(options))
    except BadInputError:
        return False
    return True


_SEEDS = 2**63


def requests_from_body(
    requested: AnswerRequest, resolved: ResolvedOptions, call_format: CallFormat | None = None
) -> list[Request]:
    """Return a request for each choice: all choices of the first prompt, then of the second.

    `call_format` is the operator's choice of a format of tool calls, or None to recognise it from the template.
    """
    config = resolved.config
    # Sampled choices get distinct seeds. Without a seed, each of them draws its own when it is made ready.
    # Greedy choices are equal, so an engine decodes them once.
    configs = [
        replace(config, seed=(config.seed + copy) % _SEEDS)
        if config.seed is not None and resolved.params.temperature
        else config
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
        yield
    except (QueueFullError, EngineClosedError, ResourceExhaustedError, NonFiniteAnswerError):
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
    params, param = requested.options.params, requested.param
    if isinstance(error, FieldError):
        param = {**params, REASONING: requested.reasoning_param}.get(error.param, error.param)
        if error.param in OPTIONS and error.param not in params:  # the client did not send it
            changed = error.with_received(f"this server's default: {error.received}")
            return changed.with_remedy(f"send another {error.param}").of_field(param, code=error.code)
        return error.of_field(param, code=error.code)
    if isinstance(error, PromptTooLongError):
        param = requested.length_param if error.answer_too_long else param
        names = {LENGTH: requested.length_param}
        return error.of_field(param, lambda text: replace_words(text, names), code="context_length_exceeded")
    if isinstance(error, GrammarRefusedError):
        may_call = requested.chat is not None and requested.chat.may_call
        param = "tools" if may_call else next((params[name] for name in GRAMMARS if name in params), LOPA_FIELD)
        if error.param is not None:
            return error.of_field(params.get(error.param, error.param))
        if LENGTH in error.remedy:  # the answer is too short for it
            names = {LENGTH: requested.length_param}
            if requested.chat is not None:
                error = error.with_remedy(f"{error.remedy}; reasoning counts too, and thinking_token_budget limits it")
            return error.of_field(param, lambda text: replace_words(text, names))
        if may_call:
            error = error.with_remedy("simplify the schemas of the tools")
            return error.of_field(param, received=f"the grammar of the tools is not usable: {error.received}")
    elif isinstance(error, ChoicesRefusedError):
        param = params.get("choices", LOPA_FIELD)
    return error.of_field(param)
