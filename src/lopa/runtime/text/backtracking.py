"""Bounds on the search time of a tokenizer's regular expressions, from their syntax, before the library compiles them.

Oniguruma backtracks, so a short expression can take years on a short text. This module counts the steps of a search
from one position of a text of n characters: at most `MAX_STEPS + MAX_STEPS_PER_CHARACTER * n`. Expressions without such
a proof are rejected. This module implements Oniguruma's syntax and does not depend on tokenizers.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

MAX_EXPRESSION = 16_384
"""Maximum characters of an expression. The longest known one, DeepSeek's list of letters, has a few thousand."""
MAX_STEPS, MAX_STEPS_PER_CHARACTER = 4096, 32
_MAX_DEPTH = 30
_MAX_COUNT = 100_000

_ONE_CHARACTER = frozenset("wWsSdDhHRtnrfvae")
_NO_CHARACTER = frozenset("bBAzZG")
_BY_NUMBER = re.compile(r"\\(?:x\{[0-9A-Fa-f]{1,8}\}|x[0-9A-Fa-f]{2}|u[0-9A-Fa-f]{4}|[pP]\{\^?[A-Za-z0-9_ -]+\})")
_POSIX = re.compile(r"\[:\^?(?:alnum|alpha|ascii|blank|cntrl|digit|graph|lower|print|punct|space|upper|word|xdigit):\]")
_COUNT = re.compile(r"\{(?:(\d{1,6})(?:(,)(\d{1,6})?)?|,(\d{1,6}))\}")
_FLAGS = re.compile(r"\(\?[im]*(?:-[im]+)?([:)])")
_NAME = re.compile(r"\(\?<[A-Za-z_]\w*>")
_LOOK_AROUNDS = ("(?=", "(?!", "(?<=", "(?<!")


class ExpressionError(ValueError):
    """Unsupported expression, or one that may take too many steps."""


class Cost(NamedTuple):
    """Number of steps or of ways to match: `fixed + per_character * n` for a text of n characters."""

    fixed: int
    per_character: int = 0

    def plus(self, other: "Cost") -> "Cost":
        """Return the sum."""
        return _bounded(Cost(self.fixed + other.fixed, self.per_character + other.per_character))

    def times(self, other: "Cost") -> "Cost":
        """Return the product. Raises ExpressionError if it is quadratic in the text."""
        if self.per_character and other.per_character:
            raise ExpressionError("two consecutive unlimited repeats before a part that can fail")
        grows = self.fixed * other.per_character + self.per_character * other.fixed
        return _bounded(Cost(self.fixed * other.fixed, grows))


def _bounded(cost: Cost) -> Cost:
    if cost.fixed > MAX_STEPS or cost.per_character > MAX_STEPS_PER_CHARACTER:
        raise ExpressionError("too many alternatives and repeats")
    return cost


_ONCE = Cost(1)
_TEXT = Cost(0, 1)
"""Cost of one per character of the text."""


@dataclass(frozen=True)
class _Item:
    """Item that matches one character of a class, or a position between characters."""

    width: int


@dataclass(frozen=True)
class _Group:
    """Alternatives in parentheses."""

    alternatives: "Sequence[Sequence[_Node]]"
    is_look: bool = False
    is_atomic: bool = False


@dataclass(frozen=True)
class _Repeat:
    inner: "_Node"
    min: int
    max: int | None
    is_possessive: bool = False


_Node = _Item | _Group | _Repeat


def shortest_match(expression: str) -> int:
    """Return the minimum number of characters that `expression` matches.

    Raises ExpressionError for an expression with unbounded search and for unknown syntax.
    """
    if len(expression) > MAX_EXPRESSION:
        raise ExpressionError(f"{len(expression)} characters, more than {MAX_EXPRESSION}")
    tree = _Parser(expression).parse()
    _steps(tree, backtracked=False)
    return _min_width(tree)


class _Parser:
    """Parser of the syntax that all versions of Oniguruma read in the same way. Other syntax is an error."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._position = 0

    def parse(self) -> _Group:
        found = self._alternatives(0)
        if self._position < len(self._text):
            raise ExpressionError("unmatched closing parenthesis")
        return _Group(found)

    def _alternatives(self, depth: int) -> list[list[_Node]]:
        """Parse alternatives up to the closing parenthesis or the end."""
        if depth > _MAX_DEPTH:
            raise ExpressionError(f"more than {_MAX_DEPTH} nested parentheses")
        flags = _FLAGS.match(self._text, self._position)
        if flags and flags[1] == ")":
            self._position = flags.end()
        found: list[list[_Node]] = [[]]
        while self._position < len(self._text) and self._text[self._position] != ")":
            if self._text[self._position] == "|":
                self._position += 1
                found.append([])
            else:
                found[-1].append(self._repeated(self._item(depth)))
        return found

    def _item(self, depth: int) -> _Node:
        sign = self._text[self._position]
        if sign == "(":
            return self._group(depth)
        if sign == "[":
            self._class()
            return _Item(1)
        if sign == "\\":
            return _Item(self._escape())
        if sign in "?*+":
            raise ExpressionError(f"{sign} has nothing to repeat")
        self._position += 1
        return _Item(0 if sign in "^$" else 1)

    def _group(self, depth: int) -> _Group:
        text, at = self._text, self._position
        flags, name = _FLAGS.match(text, at), _NAME.match(text, at)
        look = next((each for each in _LOOK_AROUNDS if text.startswith(each, at)), None)
        if look:
            self._position += len(look)
        elif name:
            self._position = name.end()
        elif flags and flags[1] == ":":
            self._position = flags.end()
        elif text.startswith("(?>", at):
            self._position += 3
        elif text.startswith("(?", at):
            raise ExpressionError(f"unsupported group {text[at : at + 4]}")
        else:
            self._position += 1
        found = self._alternatives(depth + 1)
        if self._position >= len(text):
            raise ExpressionError("unclosed parenthesis")
        self._position += 1
        return _Group(found, is_look=look is not None, is_atomic=text.startswith("(?>", at))

    def _repeated(self, item: _Node) -> _Node:
        while self._position < len(self._text):
            sign, count = self._text[self._position], _COUNT.match(self._text, self._position)
            if sign in "?*+":
                self._position += 1
                suffix = self._text[self._position : self._position + 1]
                self._position += suffix in ("?", "+")
                item = _Repeat(item, int(sign == "+"), 1 if sign == "?" else None, is_possessive=suffix == "+")
            elif count:
                self._position = count.end()
                item = _Repeat(item, *_counts(count))
                if self._text[self._position : self._position + 1] == "?":
                    self._position += 1
                    item = _Repeat(item.inner, 0, item.max)  # a lazy or optional repeat adds no ways to match
            else:
                break
        return item

    def _escape(self) -> int:
        """Parse an escape and return the number of characters that it matches."""
        number = _BY_NUMBER.match(self._text, self._position)
        if number:
            self._position = number.end()
            return 1
        sign = self._text[self._position + 1 : self._position + 2]
        known = sign in _ONE_CHARACTER or sign in _NO_CHARACTER or not (sign.isalnum() and sign.isascii())
        if not sign or not known:
            raise ExpressionError(f"unsupported escape \\{sign}")
        self._position += 2
        return 0 if sign in _NO_CHARACTER else 1

    def _class(self, depth: int = 0) -> None:
        """Parse a character class with its brackets."""
        text = self._text
        if depth > _MAX_DEPTH:
            raise ExpressionError(f"more than {_MAX_DEPTH} nested brackets")
        self._position += 1
        self._position += text.startswith("^", self._position)
        if text.startswith("]", self._position):
            raise ExpressionError("character class begins with ]")
        while self._position < len(text):
            sign = text[self._position]
            posix = _POSIX.match(text, self._position)
            if sign == "]":
                self._position += 1
                return
            if sign == "\\":
                self._escape()
            elif posix:
                self._position = posix.end()
            elif sign == "[":
                if text.startswith("[:", self._position):
                    raise ExpressionError("unknown POSIX class after [:")
                self._class(depth + 1)
            elif text.startswith("&&]", self._position):
                raise ExpressionError("nothing follows &&")
            else:
                self._position += 1
        raise ExpressionError("unclosed character class")


def _counts(found: re.Match[str]) -> tuple[int, int | None]:
    """Return the minimum and maximum of {2}, {2,}, {2,3} and {,3}."""
    low, comma, high, only_high = found.groups()
    low_count = int(low or 0)
    high_count = int(only_high or high) if only_high or high else (None if comma else low_count)
    if max(low_count, high_count or 0) > _MAX_COUNT or (high_count is not None and high_count < low_count):
        raise ExpressionError(f"invalid count {found[0]}")
    return low_count, high_count


def _can_fail(node: _Node) -> bool:
    """Return whether `node` can fail to match."""
    if isinstance(node, _Repeat):
        return node.min > 0 and _can_fail(node.inner)
    if isinstance(node, _Group) and not node.is_look:
        return all(any(map(_can_fail, each)) for each in node.alternatives)
    return True


def _min_width(node: _Node) -> int:
    """Return the minimum number of characters that `node` matches."""
    if isinstance(node, _Item):
        return node.width
    if isinstance(node, _Repeat):
        return node.min * _min_width(node.inner)
    return 0 if node.is_look else min(sum(map(_min_width, each)) for each in node.alternatives)


def _is_fixed(node: _Node) -> bool:
    """Return whether `node` matches in one way only: a fixed number of characters, each of one class."""
    if isinstance(node, _Repeat):
        return node.min == node.max and _is_fixed(node.inner)
    if isinstance(node, _Group):
        return node.is_look or (len(node.alternatives) == 1 and all(map(_is_fixed, node.alternatives[0])))
    return True


def _backtracked_items(items: Sequence[_Node], backtracked: bool) -> list[bool]:
    """Return for each item whether a later item can fail, so that the search backtracks into it."""
    found: list[bool] = []
    for item in reversed(items):
        found.append(backtracked)
        backtracked = backtracked or _can_fail(item)
    return found[::-1]


def _count_ways(node: _Node, *, backtracked: bool) -> Cost:
    """Return the number of ways in which `node` matches at one position if the rest always fails; 1 if nothing can
    fail."""
    if not backtracked or isinstance(node, _Item):
        return _ONCE
    if isinstance(node, _Group):
        if node.is_look or node.is_atomic:
            return _ONCE
        found = Cost(0)
        for each in node.alternatives:
            ways = _ONCE
            for item, is_retried in zip(each, _backtracked_items(each, True), strict=True):
                ways = ways.times(_count_ways(item, backtracked=is_retried))
            found = found.plus(ways)
        return found
    if node.is_possessive or node.max == 0:
        return _ONCE
    if node.max is None:
        if not _is_fixed(node.inner):
            raise ExpressionError("repeat inside an unlimited repeat")
        return _TEXT.plus(_ONCE)
    if _is_fixed(node.inner):
        return _bounded(Cost(node.max - node.min + 1))
    return _power(_count_ways(node.inner, backtracked=True).plus(_ONCE if node.min < node.max else Cost(0)), node.max)


def _steps(node: _Node, *, backtracked: bool) -> Cost:
    """Return the maximum steps of `node` at one position, all its ways included."""
    if isinstance(node, _Item):
        return _ONCE
    if isinstance(node, _Group):
        found = _ONCE
        for each in node.alternatives:
            ways = _ONCE
            for item, is_retried in zip(each, _backtracked_items(each, backtracked or node.is_look), strict=True):
                # If neither this item nor a later one can fail, the search visits it only once.
                times = ways if is_retried or _can_fail(item) else _ONCE
                found = found.plus(times.times(_steps(item, backtracked=is_retried)))
                ways = ways.times(_count_ways(item, backtracked=is_retried))
        return found
    if node.max == 0:
        return _ONCE
    if node.max is not None and (node.max == 1 or _is_fixed(node.inner)):
        return _ONCE.plus(_steps(node.inner, backtracked=backtracked).times(_bounded(Cost(node.max))))
    # Text matched without backtracking lies before the next search, so each character costs one step.
    length = _TEXT.plus(_ONCE) if node.max is None and backtracked else _ONCE
    if node.max is None and _is_fixed(node.inner):
        return _steps(node.inner, backtracked=False).times(length)
    if backtracked and not node.is_possessive:
        return _steps(node.inner, backtracked=True).times(_count_ways(node, backtracked=True))
    if node.min > 1:
        return (
            _steps(node.inner, backtracked=True)
            .times(_power(_count_ways(node.inner, backtracked=True), node.min))
            .times(length)
        )
    return _steps(node.inner, backtracked=False).times(length)


def _power(cost: Cost, exponent: int) -> Cost:
    found = _ONCE
    for _ in range(exponent if cost != _ONCE else 0):
        found = found.times(cost)
    return found
