"""Marks in a growing text, such as stop strings: complete ones, and first characters of one at its end."""

from collections.abc import Iterable


def before_first_mark(text: str, marks: Iterable[str]) -> tuple[str, str | None]:
    """Return the text before the first of `marks` in `text`, and that mark; the whole text and None without one.

    The first mark is the one completed first, and the longest of several completed at the same character.
    """
    found = [(at + len(mark), -len(mark), mark) for mark in marks if (at := text.find(mark)) >= 0]
    if not found:
        return text, None
    end, _, first = min(found)
    return text[: end - len(first)], first


def partial_mark_length(text: str, marks: Iterable[str]) -> int:
    """Return the length of the longest end of `text` that begins one of `marks` without completing it."""
    return max((_partial_length(text, mark) for mark in marks), default=0)


def _partial_length(text: str, mark: str) -> int:
    lengths = range(min(len(mark) - 1, len(text)), 0, -1)
    return next((length for length in lengths if text.endswith(mark[:length])), 0)
