"""Bound on the growth of a text in a tokenizer's normalizer, checked before it runs. This module does not depend on
tokens."""

import json
from typing import Any

import msgspec
import tokenizers
from tokenizers import normalizers

from lopa.runtime.errors import BadInputError
from lopa.runtime.text.tokenizer_parts import check_normalizer, check_pre_tokenizer, local_parts

MAX_TEXT_GROWTH = 16
"""Maximum output bytes per byte of text. Normal forms of Unicode need at most 11."""
_FREE_BYTES = 4096
"""Output bytes that are always allowed."""
_PIECE_CHARACTERS = 256
"""Characters measured at a time."""


class TextGrowth:
    """Bound on the bytes that one tokenizer makes of a text."""

    def __init__(self, backend: tokenizers.Tokenizer) -> None:
        """Measure a tokenizer whose expressions were checked when it was opened."""
        normalizer, pre_tokenizer = _state(backend.normalizer), _state(backend.pre_tokenizer)
        own = check_normalizer(normalizer, trusted=True)
        self._remaining_growth = check_pre_tokenizer(pre_tokenizer, trusted=True)
        self._growth = own * self._remaining_growth
        local, growth = local_parts(normalizer)
        self._remaining_growth *= growth
        self._local = normalizers.Sequence([])
        self._local.__setstate__(msgspec.json.encode({"type": "Sequence", "normalizers": local}))

    def check(self, text: str) -> None:
        """Raise BadInputError for a text that could grow more than MAX_TEXT_GROWTH times."""
        size = len(text.encode())
        limit = _FREE_BYTES + MAX_TEXT_GROWTH * size
        if size * self._growth <= limit:
            return
        found = sum(
            len(self._local.normalize_str(text[start : start + _PIECE_CHARACTERS]).encode())
            for start in range(0, len(text), _PIECE_CHARACTERS)
        )
        if found * self._remaining_growth > limit:
            raise BadInputError(
                f"the bundle's tokenizer may turn {size} bytes of text into {found * self._remaining_growth}",
                expected=f"growth by a factor of at most {MAX_TEXT_GROWTH}",
                remedy="use the original checkpoint's tokenizer, or avoid these characters",
            )


def _state(part: Any) -> Any:
    """Return a normalizer or pre-tokenizer as in tokenizer.json."""
    return None if part is None else json.loads(part.__getstate__())
