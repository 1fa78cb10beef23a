"""Text with the origin of its characters: template or message. This module does not depend on templates or tokens.

A chat template mixes its own text, whose special tokens count, with texts of messages, whose special tokens do not.
These operations work like the methods of str and track the origin. If they cannot track it per character, the whole
result counts as message text.
"""

from collections.abc import Iterable, Sequence


class MessageText(str):
    """Text with some characters from a message."""

    marks: bytes
    """One byte per character: 1 if it came from a message, otherwise 0."""

    def __new__(cls, text: str, marks: bytes) -> "MessageText":  # noqa: D102
        made = super().__new__(cls, text)
        made.marks = marks
        return made


def add_marks(text: str, marks: bytes) -> str:
    """Return `text` with its marks, or a plain text if there are none."""
    return MessageText(text, marks) if 1 in marks else str(text)


def mark_message(text: str) -> str:
    """Return `text` marked as message text."""
    return add_marks(text, b"\1" * len(text))


def get_marks(text: str) -> bytes:
    """Return the marks of `text`, zeros for plain text."""
    return text.marks if isinstance(text, MessageText) else bytes(len(text))


def mark_whole(text: str, *sources: object) -> str:
    """Return `text`, marked as message text if one of `sources` is partly message text."""
    return mark_message(text) if any(isinstance(source, MessageText) for source in sources) else text


def join_marked(parts: Sequence[str], separator: str = "") -> str:
    """Return separator.join(parts) with marks."""
    text = str.join(separator, parts)
    if not any(isinstance(part, MessageText) for part in (*parts, separator)):
        return text
    return add_marks(text, get_marks(separator).join(map(get_marks, parts)))


def slice_text(text: str, which: slice) -> str:
    """Return text[which] with marks."""
    return add_marks(str.__getitem__(text, which), get_marks(text)[which])


def strip_marked(text: str, characters: str | None = None, *, left: bool = True, right: bool = True) -> str:
    """Return text.strip(characters), or lstrip or rstrip, with marks."""
    start = len(text) - len(str.lstrip(text, characters)) if left else 0
    kept = str.rstrip(str(text)[start:], characters) if right else str(text)[start:]
    return slice_text(text, slice(start, start + len(kept)))


def split_marked(
    text: str, separator: str | None = None, max_count: int = -1, *, from_right: bool = False
) -> list[str]:
    """Return text.split(separator, max_count), or rsplit, with marks."""
    pieces = str.rsplit(text, separator, max_count) if from_right else str.split(text, separator, max_count)
    return _locate_pieces(text, pieces, 0 if separator is None else len(separator), search=separator is None)


def split_lines(text: str, keep_ends: bool = False) -> list[str]:
    """Return text.splitlines(keep_ends) with marks."""
    whole_lines = _locate_pieces(text, str.splitlines(text, True), 0, search=False)
    if keep_ends:
        return whole_lines
    lengths = map(len, str.splitlines(text))
    return [slice_text(line, slice(length)) for line, length in zip(whole_lines, lengths, strict=True)]


def replace_marked(text: str, old: str, new: str, max_count: int = -1) -> str:
    """Return text.replace(old, new, max_count) with marks."""
    if not old:
        return mark_whole(str.replace(text, old, new, max_count), text, new)
    return join_marked(split_marked(text, old, max_count), new)


def change_case(text: str, result: str) -> str:
    """Return `result`, which is `text` in another letter case, with marks. If its length changed, all of it is
    marked."""
    return add_marks(result, get_marks(text)) if len(result) == len(text) else mark_whole(result, text)


def _locate_pieces(text: str, pieces: Iterable[str], gap: int, *, search: bool) -> list[str]:
    """Return the consecutive `pieces` of `text` with their marks. They are `gap` characters apart, or with `search` at
    any distance.
    """
    found, position = [], 0
    for piece in pieces:
        start = str.index(text, piece, position) if search else position
        found.append(slice_text(text, slice(start, start + len(piece))))
        position = start + len(piece) + gap
    return found
