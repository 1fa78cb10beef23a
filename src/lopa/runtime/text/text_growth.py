"""Bound what a tokenizer's normalizer makes of a text, before it does. Knows no tokens."""

import json
from typing import Any

import msgspec
import tokenizers
from tokenizers import normalizers

from lopa.runtime.errors import BadInputError
from lopa.runtime.text.tokenizer_parts import check_normalizer, check_pre_tokenizer, local_parts

MAX_TEXT_GROWTH = 16
"""Bytes for each byte of a text. Normal forms of Unicode make at most 11 of one."""
_FREE = 4096
"""Bytes that a text may become anyhow."""
_PIECE = 256
"""Characters that are measured at a time."""


class TextGrowth:
    """How many bytes one tokenizer makes of a text."""

    def __init__(self, backend: tokenizers.Tokenizer) -> None:
        normalizer, pre_tokenizer = _state(backend.normalizer), _state(backend.pre_tokenizer)
        own, self._behind = check_normalizer(normalizer), check_pre_tokenizer(pre_tokenizer)
        self._growth = own * self._behind
        local, growth = local_parts(normalizer)
        self._behind *= growth
        self._local = normalizers.Sequence([])
        self._local.__setstate__(msgspec.json.encode({"type": "Sequence", "normalizers": local}))

    def check(self, text: str) -> None:
        """Raise BadInputError for a text that could become more than MAX_TEXT_GROWTH times as many bytes."""
        size = len(text.encode())
        upper = _FREE + MAX_TEXT_GROWTH * size
        if size * self._growth <= upper:
            return
        found = sum(
            len(self._local.normalize_str(text[start : start + _PIECE]).encode())
            for start in range(0, len(text), _PIECE)
        )
        if found * self._behind > upper:
            raise BadInputError(
                f"a text of {size} bytes, of which the bundle's tokenizer may make {found * self._behind}",
                expected=f"at most {MAX_TEXT_GROWTH} times as many",
                remedy="use the tokenizer of the original checkpoint, or other characters",
            )


def _state(part: Any) -> Any:
    """A normalizer or a pre-tokenizer as tokenizer.json has it."""
    return None if part is None else json.loads(part.__getstate__())
