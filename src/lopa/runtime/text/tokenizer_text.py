"""Safe conversion of tokenizer.json to the tokenizers library's object.

The library aborts the process if it cannot allocate the memory that a file requests. The file is therefore parsed and
bounded here, and the library gets only the checked content. This module does not depend on bundles, checkpoints or the
meaning of tokens.
"""

import os
from collections.abc import Collection
from pathlib import Path
from typing import Annotated, Any, Literal

import msgspec
import tokenizers

from lopa.runtime.errors import BadInputError, errors_as_bad_input
from lopa.runtime.text.tokenizer_parts import (
    MAX_GROWTH,
    TRUST,
    PartError,
    check_decoder,
    check_normalizer,
    check_post_processor,
    check_pre_tokenizer,
)

MAX_TOKEN_ID = 2**24
"""Maximum token ID. The largest known vocabulary has 250,000 tokens; the library's memory grows with the largest ID."""
MAX_VALUES = 2**21
"""Maximum values in a file, counted by commas. The library takes some 500 bytes for each, and XLM-V's 900,000 tokens
have 1.8 million values."""
MAX_TOKEN = 4096
"""Maximum characters of a token. The longest known have about a hundred."""
MAX_ADDED_TOKENS = 2**17
_MAX_PART_BYTES = 2**23
_MAX_AFFIX = 64
_MAX_WORD = 1024
"""Maximum characters of a word in WordPiece, whose time grows with their cube."""
_PROBE = "a text, 1\n\tnaïve 🙂 Question: 2 + 3?"

_Id = Annotated[int, msgspec.Meta(ge=0, le=MAX_TOKEN_ID)]
_Text = Annotated[str, msgspec.Meta(max_length=MAX_TOKEN)]
_Affix = Annotated[str, msgspec.Meta(max_length=_MAX_AFFIX)]
_ModelType = Literal["BPE", "Unigram", "WordLevel", "WordPiece"]
_NULL = msgspec.Raw(b"null")


class _AddedToken(msgspec.Struct):
    id: _Id
    content: _Text
    single_word: bool
    lstrip: bool
    rstrip: bool
    normalized: bool
    special: bool


class _Model(msgspec.Struct, omit_defaults=True):
    """Fields of all model types. A file has only the fields of its type."""

    vocab: dict[_Text, _Id] | list[tuple[_Text, float]]
    type: _ModelType | None = None
    merges: msgspec.Raw | msgspec.UnsetType = msgspec.UNSET
    dropout: Annotated[float, msgspec.Meta(ge=0, le=1)] | None = None
    unk_token: _Text | None = None
    unk_id: _Id | None = None
    continuing_subword_prefix: _Affix | None = None
    end_of_word_suffix: _Affix | None = None
    fuse_unk: bool | None = None
    byte_fallback: bool | None = None
    ignore_merges: bool | None = None
    max_input_chars_per_word: Annotated[int, msgspec.Meta(ge=0, le=_MAX_WORD)] | None = None


class _File(msgspec.Struct):
    """Content of tokenizer.json. Padding and truncation are left out, since lopa uses neither."""

    model: _Model
    version: str = "1.0"
    added_tokens: list[_AddedToken] | None = None
    normalizer: msgspec.Raw = _NULL
    pre_tokenizer: msgspec.Raw = _NULL
    post_processor: msgspec.Raw = _NULL
    decoder: msgspec.Raw = _NULL


def tokenizer_from_text(
    text: bytes, path: Path, *, expected: str, remedy: str, trusted: bool = False, shown: Collection[str] = ()
) -> tokenizers.Tokenizer:
    """Return the tokenizer in `text`, read from `path`, without padding and truncation.

    A tokenizer from a trusted author, by `trusted` or by the environment variable LOPA_TRUST_TOKENIZER, may have
    any regular expression. Special tokens in `shown` become ordinary ones. Raises BadInputError for text that is not a
    tokenizer, and for one that needs disproportionate memory or time. A file that parses but panics on an ordinary text
    is an error too.
    """
    trusted = trusted or os.environ.get(TRUST) == "1"
    with errors_as_bad_input(f"{path} is not a tokenizer", expected=expected, remedy=remedy):
        try:
            checked = _check_text(text, trusted, shown)
        except PartError as error:
            raise BadInputError(
                f"{path}: {error.received}", expected=error.expected, remedy=error.remedy or remedy
            ) from error
        tokenizer = tokenizers.Tokenizer.from_str(checked.decode("utf-8"))
        tokenizer.decode(tokenizer.encode(_PROBE, add_special_tokens=False).ids)
    return tokenizer


def _check_text(text: bytes, trusted: bool, shown: Collection[str]) -> bytes:
    """Return `text` parsed, checked and encoded again, so that duplicate fields cannot be read differently."""
    if text.count(b",") > MAX_VALUES:
        raise PartError(f"more than {MAX_VALUES} values", "the vocabulary of a single model")
    file = msgspec.json.decode(text, type=_File)
    if len(file.added_tokens or ()) > MAX_ADDED_TOKENS:
        raise PartError(f"{len(file.added_tokens or ())} added tokens", f"at most {MAX_ADDED_TOKENS}")
    for token in file.added_tokens or ():
        token.special = token.special and token.content not in shown
    if file.model.dropout:
        raise PartError(f"a model with dropout {file.model.dropout}", "a model that encodes a text always alike")
    file.model.type = file.model.type or _infer_model_type(file.model)
    normalizer, pre_tokenizer = _part(file.normalizer, "normalizer"), _part(file.pre_tokenizer, "pre_tokenizer")
    decoder, post_processor = _part(file.decoder, "decoder"), _part(file.post_processor, "post_processor")
    growth = check_normalizer(normalizer, trusted=trusted) * check_pre_tokenizer(pre_tokenizer, trusted=trusted)
    if growth > MAX_GROWTH:
        raise PartError(
            f"normalizer and pre_tokenizer turn one byte into up to {growth}", f"at most {MAX_GROWTH} bytes"
        )
    check_decoder(decoder, trusted=trusted)
    check_post_processor(post_processor)
    parts = (normalizer, pre_tokenizer, post_processor, decoder)
    file.normalizer, file.pre_tokenizer, file.post_processor, file.decoder = map(_encode_part, parts)
    return msgspec.json.encode(file)


def _infer_model_type(model: _Model) -> _ModelType:
    """Return the model type of an old file that lacks it."""
    if isinstance(model.vocab, list):
        return "Unigram"
    if model.merges is not msgspec.UNSET:
        return "BPE"
    return "WordLevel" if model.max_input_chars_per_word is None else "WordPiece"


def _part(raw: msgspec.Raw, name: str) -> Any:
    size = len(bytes(raw))
    if size > _MAX_PART_BYTES:
        raise PartError(f"{name} of {size} bytes", f"at most {_MAX_PART_BYTES}")
    return msgspec.json.decode(raw)


def _encode_part(part: Any) -> msgspec.Raw:
    return msgspec.Raw(msgspec.json.encode(part))
