"""Errors of prompts and answer lengths, in the client's own field names. This module does not depend on the engine."""

import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from lopa.runtime.errors import BadInputError, EngineClosedError, PromptTooLongError, QueueFullError
from lopa.serve.openai.field_error import FieldError

LENGTH = "max_new_tokens"
"""lopa's name of the option that bounds an answer's length."""


@contextmanager
def prompt_errors(param: str, length_param: str) -> Iterator[None]:
    """Turn errors about the prompts in the field `param` into a FieldError.

    An answer length that leaves no room for any prompt is an error of `length_param`, the client's name for
    max_new_tokens.
    """
    try:
        yield
    except (FieldError, QueueFullError, EngineClosedError):
        raise
    except BadInputError as error:
        raise field_error_from_prompt_error(error, param, length_param) from error


@contextmanager
def number_prompt_errors(prompts: int, copies: int) -> Iterator[None]:
    """Add the number of the invalid prompt to an error.

    There are `prompts` prompts, each submitted `copies` times in a row. A single prompt has no number.
    """
    try:
        yield
    except BadInputError as error:
        number, cause = error.prompt_number, error.__cause__
        if number is None or not isinstance(cause, BadInputError):
            raise
        if prompts > 1:
            raise cause.with_received(f"prompt {number // copies} (counted from 0): {cause.received}") from error
        raise cause from None


def field_error_from_prompt_error(error: BadInputError, param: str, length_param: str) -> FieldError:
    """Return a FieldError of the field `param`, or of `length_param` if the answer alone is too long."""
    if not isinstance(error, PromptTooLongError):
        return FieldError(param, error.received, expected=error.expected, remedy=error.remedy)
    texts = [replace_words(each, {LENGTH: length_param}) for each in (error.received, error.expected, error.remedy)]
    field = length_param if error.answer_too_long else param
    return FieldError(field, texts[0], expected=texts[1], remedy=texts[2], code="context_length_exceeded")


def replace_words(text: str, names: Mapping[str, str]) -> str:
    """Return `text` with every word that is a key of `names` replaced by its value."""
    return re.sub(r"\w+", lambda word: names.get(word[0], word[0]), text)
