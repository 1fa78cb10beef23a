"""Texts with holes in the body of a completion: OpenAI's `suffix`, and `lopa.parts` for more than one hole."""

from collections.abc import Mapping
from typing import Any

from lopa.runtime.checked_values import shown
from lopa.runtime.errors import BadInputError, FieldError, field_errors
from lopa.runtime.requests.request import Prompt
from lopa.runtime.text.text_with_holes import Hole, TextWithHoles, text_with_holes
from lopa.serve.openai.body_options import LOPA_FIELD, lopa_options_from_body

SUFFIX, PARTS = "suffix", "parts"
_PARTS_FIELD = f"{LOPA_FIELD}.{PARTS}"
_TEXT, _HOLE, _REGEX = "text", "hole", "regex"


def param_of_holes(body: Mapping[str, Any]) -> str | None:
    """Return the name of the field that makes the prompts of a completion texts with holes, or None."""
    if lopa_options_from_body(body).get(PARTS) is not None:
        return _PARTS_FIELD
    return SUFFIX if body.get(SUFFIX) else None


def text_before_suffix(prompt: Prompt, suffix: Any, tokens: int) -> TextWithHoles:
    """Return `prompt`, a hole of `tokens` tokens, and `suffix`. Raises FieldError for a suffix that is not a string."""
    if not isinstance(suffix, str):
        raise FieldError(
            SUFFIX, f"suffix {shown(suffix)} is not a string", expected="a string", remedy="correct the field"
        )
    with field_errors("max_tokens"):
        hole = Hole(tokens)
    return text_with_holes([prompt, hole, suffix])


def text_from_parts(parts: Any, body: Mapping[str, Any], max_tokens: int | None) -> TextWithHoles:
    """Return the text of `lopa.parts`: a list of {"text": string} and {"hole": number of tokens, or a list of the
    smallest and the largest number}.

    The holes have at most `max_tokens` tokens in all. Raises FieldError for other parts, and if the body has a prompt
    or suffix too.
    """
    for other in ("prompt", SUFFIX):
        if body.get(other):
            raise FieldError(
                _PARTS_FIELD, f"parts and {other}", expected="one of the two", remedy=f"remove {other} or parts"
            )
    with field_errors(_PARTS_FIELD):
        if not isinstance(parts, list):
            raise _invalid_part(parts)
        text = text_with_holes([_part(part) for part in parts])
        tokens = sum(hole.most_tokens for hole in text.holes)
        if max_tokens is not None and tokens > max_tokens:
            raise BadInputError(
                f"holes of {tokens} tokens in all",
                expected=f"at most {max_tokens}, the limit of this server",
                remedy="shorten the holes",
            )
        return text


def _part(part: Any) -> str | Hole:
    if isinstance(part, dict) and part.keys() == {_TEXT} and isinstance(part[_TEXT], str):
        return str(part[_TEXT])
    if isinstance(part, dict) and _HOLE in part and part.keys() <= {_HOLE, _REGEX}:
        lengths = part[_HOLE]
        least, most = lengths if isinstance(lengths, list) and len(lengths) == 2 else (lengths, None)
        return Hole(least, most, part.get(_REGEX))
    raise _invalid_part(part)


def _invalid_part(part: Any) -> BadInputError:
    return BadInputError(
        f"invalid part {shown(part)}",
        expected='a list of {"text": string} and {"hole": number of tokens, or [smallest, largest]}, with or without '
        '"regex"',
        remedy="correct it",
    )
