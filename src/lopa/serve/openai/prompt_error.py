"""Errors of prompts and answer lengths, in the client's own field names. This module does not depend on the engine."""

import re
from collections.abc import Mapping

from lopa.runtime.errors import FieldError, PromptTooLongError

LENGTH = "max_new_tokens"
"""lopa's name of the option that bounds an answer's length."""


def field_error_from_long_prompt(error: PromptTooLongError, param: str, length_param: str) -> FieldError:
    """Return a FieldError of the field `param`, or of `length_param` if the answer alone is too long."""
    texts = [replace_words(each, {LENGTH: length_param}) for each in (error.received, error.expected, error.remedy)]
    field = length_param if error.answer_too_long else param
    return FieldError(field, texts[0], expected=texts[1], remedy=texts[2], code="context_length_exceeded")


def replace_words(text: str, names: Mapping[str, str]) -> str:
    """Return `text` with every word that is a key of `names` replaced by its value."""
    return re.sub(r"\w+", lambda word: names.get(word[0], word[0]), text)
