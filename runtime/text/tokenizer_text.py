"""From the text of tokenizer.json to the tokenizers library's object, without trusting the text.

Knows neither bundles nor checkpoints, nor what the tokens mean.
"""

from pathlib import Path
from typing import Annotated, Any

import msgspec
import tokenizers

from lopa.runtime.files.untrusted_input import refused_as_bad_input

MOST_TOKEN_ID = 2**24
"""The largest vocabulary known has a quarter of a million; the library's memory grows with the largest id."""
_PROBE = "a text, 1\n\tnaïve 🙂 Question: 2 + 3?"

_Id = Annotated[int, msgspec.Meta(ge=0, le=MOST_TOKEN_ID)]


class _AddedToken(msgspec.Struct):
    id: _Id


class _Model(msgspec.Struct):
    vocab: dict[str, _Id] | list[Any] = msgspec.field(default_factory=dict)


class _TokenIds(msgspec.Struct):
    """Of the file, what this module checks itself."""

    model: _Model
    added_tokens: list[_AddedToken] | None = None


def tokenizer_from_text(text: bytes, path: Path, *, expected: str, remedy: str) -> tokenizers.Tokenizer:
    """The tokenizer in `text`, which was read from `path`, without padding and truncation.

    Raises BadInputError for text that is no tokenizer, and for a tokenizer that fails at an ordinary text: some files
    can be read and then panic.
    """
    with refused_as_bad_input(f"{path} is not a tokenizer", expected=expected, remedy=remedy):
        msgspec.json.decode(text, type=_TokenIds)
        tokenizer = tokenizers.Tokenizer.from_str(text.decode("utf-8"))
        # What a file pads to is a number that nobody checked.
        tokenizer.no_truncation()
        tokenizer.no_padding()
        tokenizer.decode(tokenizer.encode(_PROBE, add_special_tokens=False).ids)
    return tokenizer
