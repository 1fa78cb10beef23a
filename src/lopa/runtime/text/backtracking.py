"""Bound the time of a tokenizer's regular expressions by their form, before the library compiles them.

Oniguruma backtracks, so that an expression of a few characters can take years for a short text. The rule here counts
the steps that a search takes from one place of a text of n characters: at most
`MAX_STEPS + MAX_STEPS_PER_CHARACTER * n`. Expressions for which that cannot be shown are refused. Knows Oniguruma's
syntax, no tokenizer.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

MAX_EXPRESSION = 16_384
"""Characters. The longest that is known, a list of letters by DeepSeek, has some thousand."""
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
_LOOKS = ("(?=", "(?!", "(?<=", "(?<!")


class ExpressionError(ValueError):
    """An expression that is not understood, or that may take too many steps."""


class Cost(NamedTuple):
    """A number of steps, or of ways to match: `fixed + per_character * n` for a text of n characters."""

    fixed: int
    per_character: int = 0

    def plus(self, other: "Cost") -> "Cost":
        """Return the sum."""
        return _bounded(Cost(self.fixed + other.fixed, self.per_character + other.per_character))

    def times(self, other: "Cost") -> "Cost":
        """Return the product. Raises ExpressionError where it grows with the square of the text."""
        if self.per_character and other.per_character:
            raise ExpressionError("two repeats without a limit, one behind the other, that a later part can undo")
        grows = self.fixed * other.per_character + self.per_character * other.fixed
        return _bounded(Cost(self.fixed * other.fixed, grows))


def _bounded(cost: Cost) -> Cost:
    if cost.fixed > MAX_STEPS or cost.per_character > MAX_STEPS_PER_CHARACTER:
        raise ExpressionError("too many alternatives and repeats")
    return cost


_ONCE = Cost(1)
_TEXT = Cost(0, 1)
"""One for each character of the text."""


@dataclass(frozen=True)
class _Item:
    """One character of a class, or a place between characters."""

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
    """Return the fewest characters that `expression` matches.

    Raises ExpressionError for an expression whose search is not bounded, or that is not understood.
    """
    if len(expression) > MAX_EXPRESSION:
        raise ExpressionError(f"{len(expression)} characters, more than {MAX_EXPRESSION}")
    whole = _Parser(expression).whole()
    _steps(whole, retried=False)
    return _min_width(whole)


class _Parser:
    """Reads what every version of Oniguruma reads in one way; everything else is refused."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._at = 0

    def whole(self) -> _Group:
        found = self._alternatives(0)
        if self._at < len(self._text):
            raise ExpressionError("a parenthesis too many")
        return _Group(found)

    def _alternatives(self, depth: int) -> list[list[_Node]]:
        """Everything up to the parenthesis that closes it, or to the end."""
        if depth > _MAX_DEPTH:
            raise ExpressionError(f"more than {_MAX_DEPTH} parentheses inside each other")
        flags = _FLAGS.match(self._text, self._at)
        if flags and flags[1] == ")":
            self._at = flags.end()
        found: list[list[_Node]] = [[]]
        while self._at < len(self._text) and self._text[self._at] != ")":
            if self._text[self._at] == "|":
                self._at += 1
                found.append([])
            else:
                found[-1].append(self._repeated(self._item(depth)))
        return found

    def _item(self, depth: int) -> _Node:
        sign = self._text[self._at]
        if sign == "(":
            return self._group(depth)
        if sign == "[":
            self._class()
            return _Item(1)
        if sign == "\\":
            return _Item(self._escape())
        if sign in "?*+":
            raise ExpressionError(f"{sign} behind nothing")
        self._at += 1
        return _Item(0 if sign in "^$" else 1)

    def _group(self, depth: int) -> _Group:
        text, at = self._text, self._at
        flags, name = _FLAGS.match(text, at), _NAME.match(text, at)
        look = next((each for each in _LOOKS if text.startswith(each, at)), None)
        if look:
            self._at += len(look)
        elif name:
            self._at = name.end()
        elif flags and flags[1] == ":":
            self._at = flags.end()
        elif text.startswith("(?>", at):
            self._at += 3
        elif text.startswith("(?", at):
            raise ExpressionError(f"the group {text[at : at + 4]}")
        else:
            self._at += 1
        found = self._alternatives(depth + 1)
        if self._at >= len(text):
            raise ExpressionError("a parenthesis that is not closed")
        self._at += 1
        return _Group(found, is_look=look is not None, is_atomic=text.startswith("(?>", at))

    def _repeated(self, item: _Node) -> _Node:
        while self._at < len(self._text):
            sign, count = self._text[self._at], _COUNT.match(self._text, self._at)
            if sign in "?*+":
                self._at += 1
                behind = self._text[self._at : self._at + 1]
                self._at += behind in ("?", "+")
                item = _Repeat(item, int(sign == "+"), 1 if sign == "?" else None, is_possessive=behind == "+")
            elif count:
                self._at = count.end()
                item = _Repeat(item, *_counts(count))
                if self._text[self._at : self._at + 1] == "?":
                    self._at += 1
                    item = _Repeat(item.inner, 0, item.max)  # a lazy one, or an optional one: it has no more ways
            else:
                break
        return item

    def _escape(self) -> int:
        """Pass an escape, which matches so many characters."""
        number = _BY_NUMBER.match(self._text, self._at)
        if number:
            self._at = number.end()
            return 1
        sign = self._text[self._at + 1 : self._at + 2]
        known = sign in _ONE_CHARACTER or sign in _NO_CHARACTER or not (sign.isalnum() and sign.isascii())
        if not sign or not known:
            raise ExpressionError(f"the escape \\{sign}")
        self._at += 2
        return 0 if sign in _NO_CHARACTER else 1

    def _class(self, depth: int = 0) -> None:
        """Pass a character class with its brackets."""
        text = self._text
        if depth > _MAX_DEPTH:
            raise ExpressionError(f"more than {_MAX_DEPTH} brackets inside each other")
        self._at += 1
        self._at += text.startswith("^", self._at)
        if text.startswith("]", self._at):
            raise ExpressionError("a character class that begins with ]")
        while self._at < len(text):
            sign = text[self._at]
            posix = _POSIX.match(text, self._at)
            if sign == "]":
                self._at += 1
                return
            if sign == "\\":
                self._escape()
            elif posix:
                self._at = posix.end()
            elif sign == "[":
                if text.startswith("[:", self._at):
                    raise ExpressionError("the class [: that is not known")
                self._class(depth + 1)
            elif text.startswith("&&]", self._at):
                raise ExpressionError("&& behind which nothing stands")
            else:
                self._at += 1
        raise ExpressionError("a character class that is not closed")


def _counts(found: re.Match[str]) -> tuple[int, int | None]:
    """The least and the greatest number of {2}, {2,}, {2,3} and {,3}."""
    low, comma, high, only_high = found.groups()
    low_count = int(low or 0)
    high_count = int(only_high or high) if only_high or high else (None if comma else low_count)
    if max(low_count, high_count or 0) > _MAX_COUNT or (high_count is not None and high_count < low_count):
        raise ExpressionError(f"the count {found[0]}")
    return low_count, high_count


def _can_fail(node: _Node) -> bool:
    """Return whether `node` can fail to match somewhere."""
    if isinstance(node, _Repeat):
        return node.min > 0 and _can_fail(node.inner)
    if isinstance(node, _Group) and not node.is_look:
        return all(any(map(_can_fail, each)) for each in node.alternatives)
    return True


def _min_width(node: _Node) -> int:
    """The fewest characters that `node` matches."""
    if isinstance(node, _Item):
        return node.width
    if isinstance(node, _Repeat):
        return node.min * _min_width(node.inner)
    return 0 if node.is_look else min(sum(map(_min_width, each)) for each in node.alternatives)


def _is_fixed(node: _Node) -> bool:
    """Return whether `node` matches in one way only: a fixed run of characters, each of one class."""
    if isinstance(node, _Repeat):
        return node.min == node.max and _is_fixed(node.inner)
    if isinstance(node, _Group):
        return node.is_look or (len(node.alternatives) == 1 and all(map(_is_fixed, node.alternatives[0])))
    return True


def _retried(items: Sequence[_Node], retried: bool) -> list[bool]:
    """For each item, whether something behind it can fail, so that the search comes back to it."""
    found: list[bool] = []
    for item in reversed(items):
        found.append(retried)
        retried = retried or _can_fail(item)
    return found[::-1]


def _ways(node: _Node, *, retried: bool) -> Cost:
    """In how many ways `node` is tried from one place, if what follows fails each time; one if nothing can."""
    if not retried or isinstance(node, _Item):
        return _ONCE
    if isinstance(node, _Group):
        if node.is_look or node.is_atomic:
            return _ONCE
        found = Cost(0)
        for each in node.alternatives:
            ways = _ONCE
            for item, again in zip(each, _retried(each, True), strict=True):
                ways = ways.times(_ways(item, retried=again))
            found = found.plus(ways)
        return found
    if node.is_possessive or node.max == 0:
        return _ONCE
    if node.max is None:
        if not _is_fixed(node.inner):
            raise ExpressionError("a repeat inside a repeat without a limit")
        return _TEXT.plus(_ONCE)
    if _is_fixed(node.inner):
        return _bounded(Cost(node.max - node.min + 1))
    return _power(_ways(node.inner, retried=True).plus(_ONCE if node.min < node.max else Cost(0)), node.max)


def _steps(node: _Node, *, retried: bool) -> Cost:
    """The most steps that `node` takes from one place, all its ways together."""
    if isinstance(node, _Item):
        return _ONCE
    if isinstance(node, _Group):
        found = _ONCE
        for each in node.alternatives:
            ways = _ONCE
            for item, again in zip(each, _retried(each, retried or node.is_look), strict=True):
                # Where neither this item nor one behind it can fail, the search does not come here a second time.
                times = ways if again or _can_fail(item) else _ONCE
                found = found.plus(times.times(_steps(item, retried=again)))
                ways = ways.times(_ways(item, retried=again))
        return found
    if node.max == 0:
        return _ONCE
    if node.max is not None and (node.max == 1 or _is_fixed(node.inner)):
        return _ONCE.plus(_steps(node.inner, retried=retried).times(_bounded(Cost(node.max))))
    # What is matched without a way back is behind the next search: it costs each character one step, once.
    length = _TEXT.plus(_ONCE) if node.max is None and retried else _ONCE
    if node.max is None and _is_fixed(node.inner):
        return _steps(node.inner, retried=False).times(length)
    if retried and not node.is_possessive:
        return _steps(node.inner, retried=True).times(_ways(node, retried=True))
    if node.min > 1:
        return _steps(node.inner, retried=True).times(_power(_ways(node.inner, retried=True), node.min)).times(length)
    return _steps(node.inner, retried=False).times(length)


def _power(cost: Cost, exponent: int) -> Cost:
    found = _ONCE
    for _ in range(exponent if cost != _ONCE else 0):
        found = found.times(cost)
    return found
