"""From the text of tokenizer.json to the tokenizers library's object, without trusting the text.

The library aborts the process where it cannot have the memory that a file asks for, and nothing catches that. So the
file is read and bounded here first, and the library gets what was read and nothing else. Knows neither bundles nor
checkpoints, nor what the tokens mean.
"""

from pathlib import Path
from typing import Annotated, Any, Literal

import msgspec
import tokenizers

from lopa.runtime.errors import BadInputError
from lopa.runtime.files.untrusted_input import refused_as_bad_input
from lopa.runtime.text.tokenizer_parts import (
    MAX_GROWTH,
    PartError,
    check_decoder,
    check_normalizer,
    check_post_processor,
    check_pre_tokenizer,
)

MAX_TOKEN_ID = 2**24
"""The largest vocabulary known has a quarter of a million; the library's memory grows with the largest id."""
MAX_VALUES = 2**21
"""In a file, counted by its commas: the library takes some 500 bytes for each. XLM-V's 900,000 tokens have 1.8
million."""
MAX_TOKEN = 4096
"""Characters. The longest known have some hundred."""
MAX_ADDED_TOKENS = 2**17
_MAX_PART_BYTES = 2**23
_MAX_AFFIX = 64
_MAX_WORD = 1024
"""Characters of a word that WordPiece looks at; the time for it grows with their cube."""
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
    """The fields of every type of model; a file has those of its own."""

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
    """Return the text for the library. Padding and truncation are left out: here nothing is padded or cut."""

    model: _Model
    version: str = "1.0"
    added_tokens: list[_AddedToken] | None = None
    normalizer: msgspec.Raw = _NULL
    pre_tokenizer: msgspec.Raw = _NULL
    post_processor: msgspec.Raw = _NULL
    decoder: msgspec.Raw = _NULL


def tokenizer_from_text(text: bytes, path: Path, *, expected: str, remedy: str) -> tokenizers.Tokenizer:
    """The tokenizer in `text`, which was read from `path`, without padding and truncation.

    Raises BadInputError for text that is no tokenizer, for one that could take memory or time out of proportion to the
    file and to a prompt, and for one that fails at an ordinary text: some files can be read and then panic.
    """
    with refused_as_bad_input(f"{path} is not a tokenizer", expected=expected, remedy=remedy):
        try:
            checked = _checked(text)
        except PartError as error:
            raise BadInputError(f"{path}: {error.received}", expected=error.expected, remedy=remedy) from error
        tokenizer = tokenizers.Tokenizer.from_str(checked.decode("utf-8"))
        tokenizer.decode(tokenizer.encode(_PROBE, add_special_tokens=False).ids)
    return tokenizer


def _checked(text: bytes) -> bytes:
    """`text` as it was read and checked, written again: a field that stands there twice is read by nobody twice."""
    if text.count(b",") > MAX_VALUES:
        raise PartError(f"more than {MAX_VALUES} values", "the vocabulary of one model")
    file = msgspec.json.decode(text, type=_File)
    if len(file.added_tokens or ()) > MAX_ADDED_TOKENS:
        raise PartError(f"{len(file.added_tokens or ())} added tokens", f"at most {MAX_ADDED_TOKENS}")
    file.model.type = file.model.type or _type_of_model(file.model)
    normalizer, pre_tokenizer = _part(file.normalizer, "normalizer"), _part(file.pre_tokenizer, "pre_tokenizer")
    decoder, post_processor = _part(file.decoder, "decoder"), _part(file.post_processor, "post_processor")
    growth = check_normalizer(normalizer) * check_pre_tokenizer(pre_tokenizer)
    if growth > MAX_GROWTH:
        raise PartError(
            f"a normalizer and a pre_tokenizer that make up to {growth} bytes of one", f"at most {MAX_GROWTH}"
        )
    check_decoder(decoder)
    check_post_processor(post_processor)
    parts = (normalizer, pre_tokenizer, post_processor, decoder)
    file.normalizer, file.pre_tokenizer, file.post_processor, file.decoder = map(_written, parts)
    return msgspec.json.encode(file)


def _type_of_model(model: _Model) -> _ModelType:
    """Default for old files, which lack it."""
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


def _written(part: Any) -> msgspec.Raw:
    return msgspec.Raw(msgspec.json.encode(part))
