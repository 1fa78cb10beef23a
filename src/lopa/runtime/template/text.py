"""Text that knows which of its characters a message brought. Pure; knows neither templates nor tokens.

A chat template weaves its own text, whose special tokens are meant, with the texts of messages, whose are not. The
operations here are those of str, and keep account of the origin; where that cannot be done character by character,
everything that comes out counts as brought by a message.
"""

from collections.abc import Iterable, Sequence


class MessageText(str):
    """A text some of whose characters came from a message."""

    marks: bytes
    """One for each character: 1 where it came from a message, else 0."""

    def __new__(cls, text: str, marks: bytes) -> "MessageText":  # noqa: D102
        made = super().__new__(cls, text)
        made.marks = marks
        return made


def marked(text: str, marks: bytes) -> str:
    """`text` with its marks, as a plain text where there are none."""
    return MessageText(text, marks) if 1 in marks else str(text)


def from_message(text: str) -> str:
    """`text`, all of it from a message."""
    return marked(text, b"\1" * len(text))


def marks_of(text: str) -> bytes:
    """The marks of `text`; zeros for a plain one."""
    return text.marks if isinstance(text, MessageText) else bytes(len(text))


def whole(text: str, *sources: object) -> str:
    """`text`, all of it from a message if one of the texts that it was made of is in part."""
    return from_message(text) if any(isinstance(source, MessageText) for source in sources) else text


def joined(parts: Sequence[str], separator: str = "") -> str:
    """As separator.join(parts)."""
    text = str.join(separator, parts)
    if not any(isinstance(part, MessageText) for part in (*parts, separator)):
        return text
    return marked(text, marks_of(separator).join(map(marks_of, parts)))


def part_of(text: str, which: slice) -> str:
    """As text[which]."""
    return marked(str.__getitem__(text, which), marks_of(text)[which])


def stripped(text: str, characters: str | None = None, *, left: bool = True, right: bool = True) -> str:
    """As text.strip(characters), or lstrip, or rstrip."""
    start = len(text) - len(str.lstrip(text, characters)) if left else 0
    kept = str.rstrip(str(text)[start:], characters) if right else str(text)[start:]
    return part_of(text, slice(start, start + len(kept)))


def split(text: str, separator: str | None = None, max: int = -1, *, from_right: bool = False) -> list[str]:
    """As text.split(separator, most), or rsplit."""
    pieces = str.rsplit(text, separator, max) if from_right else str.split(text, separator, max)
    return _located(text, pieces, 0 if separator is None else len(separator), search=separator is None)


def lines_of(text: str, keep_ends: bool = False) -> list[str]:
    """As text.splitlines(keep_ends)."""
    whole_lines = _located(text, str.splitlines(text, True), 0, search=False)
    if keep_ends:
        return whole_lines
    lengths = map(len, str.splitlines(text))
    return [part_of(line, slice(length)) for line, length in zip(whole_lines, lengths, strict=True)]


def replaced(text: str, old: str, new: str, max: int = -1) -> str:
    """As text.replace(old, new, most)."""
    if not old:
        return whole(str.replace(text, old, new, max), text, new)
    return joined(split(text, old, max), new)


def recased(text: str, result: str) -> str:
    """`result`, which is `text` with other letters at the same places, if none became several."""
    return marked(result, marks_of(text)) if len(result) == len(text) else whole(result, text)


def _located(text: str, pieces: Iterable[str], gap: int, *, search: bool) -> list[str]:
    """`pieces`, which stand in `text` in this order, `gap` characters apart or to be searched, with their marks."""
    found, position = [], 0
    for piece in pieces:
        start = str.index(text, piece, position) if search else position
        found.append(part_of(text, slice(start, start + len(piece))))
        position = start + len(piece) + gap
    return found
