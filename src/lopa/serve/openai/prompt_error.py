"""Errors of prompts and answer lengths, in the client's own field names. Knows no engine."""

import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from lopa.runtime.errors import BadInputError, EngineClosedError, PromptTooLongError, QueueFullError
from lopa.serve.openai.field_error import FieldError

LENGTH = "max_new_tokens"
"""Our name of the option that bounds an answer's length."""


@contextmanager
def errors_of_prompts(param: str, length_param: str) -> Iterator[None]:
    """Turn what an engine finds wrong with the prompts in the field `param` into a FieldError.

    An answer that no prompt leaves room for is wrong with `length_param`, the client's name for max_new_tokens.
    """
    try:
        yield
    except (FieldError, QueueFullError, EngineClosedError):
        raise
    except BadInputError as error:
        raise field_error_of_prompt(error, param, length_param) from error


@contextmanager
def numbers_of_prompts(prompts: int, copies: int) -> Iterator[None]:
    """Name a prompt that is wrong by its number among `prompts`, of which each was submitted `copies` times in turn; a
    prompt that came alone has no number."""
    try:
        yield
    except BadInputError as error:
        number, cause = error.prompt_number, error.__cause__
        if number is None or not isinstance(cause, BadInputError):
            raise
        if prompts > 1:
            raise cause.with_received(f"in prompt {number // copies}, counted from 0: {cause.received}") from error
        raise cause from None


def field_error_of_prompt(error: BadInputError, param: str, length_param: str) -> FieldError:
    """Return `error` as one of the field `param`, or of `length_param` where the answer alone is too long."""
    if not isinstance(error, PromptTooLongError):
        return FieldError(param, error.received, expected=error.expected, remedy=error.remedy)
    said = [renamed(each, {LENGTH: length_param}) for each in (error.received, error.expected, error.remedy)]
    field = length_param if error.answer_too_long else param
    return FieldError(field, said[0], expected=said[1], remedy=said[2], code="context_length_exceeded")


def renamed(text: str, names: Mapping[str, str]) -> str:
    """`text` with every word that is a key of `names` replaced by its value."""
    return re.sub(r"\w+", lambda word: names.get(word[0], word[0]), text)
