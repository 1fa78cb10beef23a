"""Private characters in place of the characters of messages.

A chat is rendered twice: with its messages, and with each of their characters replaced by a private one. What is
private in the second text came from a message. Private characters are code points that Unicode has not assigned. No
function of a template turns one into another character. White space is never replaced, since templates trim it.
"""

from typing import Any

import numpy as np

_FIRST, _SECOND, _END = 0x40000, 0x80000, 0xB0000
"""The private characters: one for each code point below _FIRST, and one for each from _PLANES on."""
_PLANES = 0xE0000
_SHIFT = _PLANES - _SECOND
_LAST_SPACE = 0x3000
_SPACES = np.array([chr(code).isspace() for code in range(_LAST_SPACE + 2)])
_SHORT = 200
"""Characters up to which a table is faster than arrays."""
_PRIVATE = {code: code + _FIRST for code in range(128) if not chr(code).isspace()}
_PLAIN = {private: code for code, private in _PRIVATE.items()}


class Fields(dict[str, Any]):
    """Mapping with private keys, which is read by plain and private keys."""

    def __missing__(self, key: Any) -> Any:
        private = to_private(key)
        if private == key:
            raise KeyError(key)
        return self[private]

    def __contains__(self, key: Any) -> bool:
        return super().__contains__(to_private(key))

    def get(self, key: Any, default: Any = None) -> Any:
        """Return the value of `key`, or `default`."""
        return super().get(to_private(key), default)


def to_private(value: Any) -> Any:
    """Return `value` with private characters in its texts and keys. White space and private characters stay."""
    if isinstance(value, str):
        if len(value) < _SHORT and value.isascii():
            return value.translate(_PRIVATE)
        return _text(_private_codes(_codes(value)))
    if isinstance(value, dict):
        return Fields({to_private(key): to_private(each) for key, each in value.items()})
    return type(value)(map(to_private, value)) if isinstance(value, (list, tuple)) else value


def to_plain(value: Any) -> Any:
    """Return `value` with the characters that the private ones stand for."""
    if isinstance(value, str):
        if value.isascii():
            return value
        if len(value) < _SHORT:
            value = value.translate(_PLAIN)
            if value.isascii():
                return value
        codes = _codes(value)
        return _text(codes + np.where(_is_private(codes), np.where(codes < _SECOND, -_FIRST, _SHIFT), 0))
    if isinstance(value, dict):
        return {to_plain(key): to_plain(each) for key, each in value.items()}
    return type(value)(map(to_plain, value)) if isinstance(value, (list, tuple)) else value


def private_where(found: str, plain: str) -> str:
    """Return `plain` with private characters wherever `found`, a text of the same length, has them."""
    codes = _codes(plain)
    return _text(np.where(_is_private(_codes(found)), _private_codes(codes), codes))


def is_private(text: Any) -> bool:
    """Return whether `text` has private characters and white space only."""
    codes = _codes(text) if isinstance(text, str) else np.zeros(1, np.int32)
    return bool((_is_private(codes) | _is_space(codes)).all())


def message_marks(text: str, private: str) -> bytes:
    """Return one byte for each character of `text`: 1 if `private`, a text of the same length, differs there.

    White space next to such a character counts as the message's too, since both may write it.
    """
    codes = _codes(text)
    marks = codes != _codes(private)
    for _ in range(2):  # to the right, and then to the left
        marked = np.where(_is_space(codes), -1, np.arange(len(codes)))
        last = np.maximum.accumulate(marked) if len(codes) else marked
        marks = marks | ((last >= 0) & marks[last])
        codes, marks = codes[::-1], marks[::-1]
    return bytes(marks.astype(np.uint8).tobytes())


def _private_codes(codes: Any) -> Any:
    shift = np.where(_is_space(codes), 0, np.where(codes < _FIRST, _FIRST, np.where(codes < _PLANES, 0, -_SHIFT)))
    return codes + shift


def _is_private(codes: Any) -> Any:
    return (codes >= _FIRST) & (codes < _END)


def _is_space(codes: Any) -> Any:
    return _SPACES[np.minimum(codes, _LAST_SPACE + 1)]


def _codes(text: str) -> Any:
    return np.frombuffer(text.encode("utf-32-le", "surrogatepass"), "<i4")


def _text(codes: Any) -> str:
    return bytes(codes.astype("<i4").tobytes()).decode("utf-32-le", "surrogatepass")
