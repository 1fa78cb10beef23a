"""Prompts, given as text or token IDs, checked and converted to IDs. This module uses the bundle's limits, but no
session."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from lopa.runtime.bundle.manifest import Manifest
from lopa.runtime.checked_values import shown
from lopa.runtime.contract import Int64
from lopa.runtime.errors import BadInputError, PromptTooLongError
from lopa.runtime.options import DecodingParams
from lopa.runtime.text.tokenizer import Tokenizer


def ids_from_prompt(prompt: Any, params: DecodingParams, tokenizer: Tokenizer, manifest: Manifest) -> Int64:
    """Return the token IDs [length] of a prompt. A text gets the bundle's beginning-of-text token; IDs are used
    unchanged.

    Special tokens in a text are plain text unless `params` allows them. Raises BadInputError for an empty prompt, IDs
    outside the vocabulary, a text with holes, and a prompt that leaves no room for the answer.
    """
    if isinstance(prompt, str):
        ids: Sequence[Any] = prompt and tokenizer.encode(
            prompt, add_bos=manifest.decoding.add_bos, special_tokens=params.special_tokens
        )
    else:
        ids = _check_form(prompt)
    if not len(ids):
        raise BadInputError(
            "an empty prompt", expected="at least one character or token ID", remedy="provide a text to continue"
        )
    check_length(len(ids), params, manifest)
    vocabulary = manifest.dimensions.vocab_size
    if not all(is_token_id(each, vocabulary) for each in ids):
        raise BadInputError(
            f"invalid prompt ids {shown(ids)}",
            expected=f"a list of integers from 0 to {vocabulary - 1}",
            remedy="encode the text with the bundle's tokenizer; put several prompts into a list",
        )
    return np.array(ids, np.int64)


def length_unit(params: DecodingParams, manifest: Manifest) -> int:
    """Return the number of positions of which an answer takes a multiple."""
    return 1 if manifest.dimensions.canvas is None else params.block_size


def check_length(length: int, params: DecodingParams, manifest: Manifest) -> None:
    """Raise PromptTooLongError unless a prompt of `length` tokens leaves room for the answer."""
    positions, answer = manifest.dimensions.max_positions, params.positions
    if length + answer <= positions:
        return
    room = f"this model has {positions} positions for prompt and answer together"
    if answer < positions:
        raise PromptTooLongError(
            f"the prompt has {length} tokens, but {room} (max_new_tokens: {params.max_new_tokens})",
            expected=f"at most {positions - answer} tokens with this max_new_tokens",
            remedy="shorten the prompt" + (" or lower max_new_tokens" if length < positions else ""),
        )
    unit = length_unit(params, manifest)
    most = (positions - length) // unit * unit
    error = PromptTooLongError(
        f"max_new_tokens is {params.max_new_tokens}, but {room} (prompt: {length})",
        expected=f"at most {most} with this prompt" if most > 0 else "a prompt and an answer that fit",
        remedy="lower max_new_tokens" + ("" if most > 0 else " and shorten the prompt"),
    )
    error.answer_too_long = True
    raise error


def _check_form(prompt: Any) -> Sequence[Any]:
    """Return a prompt that may be token IDs. Raises BadInputError for any other type."""
    if isinstance(prompt, (list, tuple)) and prompt and isinstance(prompt[0], str):
        raise BadInputError(
            f"{len(prompt)} texts as one prompt",
            expected="one prompt: a text, token IDs or a Chat",
            remedy="pass one text, or several to generate or submit_many",
        )
    if isinstance(prompt, np.ndarray) and prompt.ndim == 1 and prompt.dtype.kind in "iu":
        return list(prompt)
    if isinstance(prompt, Sequence) and not isinstance(prompt, (bytes, bytearray, memoryview)):
        return prompt
    raise BadInputError(
        f"invalid prompt {shown(prompt)}",
        expected="a string, or a list of token IDs",
        remedy="decode bytes, convert arrays to lists, and messages to a Chat; pass IDs as lists",
    )


def is_token_id(value: Any, vocabulary: int) -> bool:
    """Return whether `value` is an integer from 0 to below `vocabulary`."""
    return isinstance(value, (int, np.integer)) and not isinstance(value, bool) and 0 <= int(value) < vocabulary
