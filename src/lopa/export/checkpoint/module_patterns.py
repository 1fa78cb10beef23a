"""Regular expressions over the names of modules, matched in a bounded number of steps.

An adapter's configuration brings them, and the library's matcher takes time exponential in some of them. This one
carries the set of all places that a match can have reached, so that nothing is tried twice. It knows what PEFT's
patterns are made of; groups are not remembered, and what refers back to them is refused.
"""

import importlib
import re
import warnings
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from lopa.runtime.errors import BadInputError
from lopa.runtime.files.untrusted_input import refused_as_bad_input

_MOST_STEPS = 2_000_000
"""Of all patterns of an adapter together: a second or two. A table with a pattern for every module of 80 layers takes
a fifth."""
_STEPS_TO_PARSE = 100
_LONGEST = 2000
"""Characters of a pattern."""
_EXPECTED = "a regular expression without flags and references, and patterns that are matched in little time"
_REMEDY = "name the modules in full in the adapter's configuration"
# The library's own parser has no public name; its trees have been the same since Python 3.11 at least.
_parser: Any = importlib.import_module("re._parser")
_CATEGORIES = {
    "CATEGORY_DIGIT": re.compile(r"\d"),
    "CATEGORY_NOT_DIGIT": re.compile(r"\D"),
    "CATEGORY_SPACE": re.compile(r"\s"),
    "CATEGORY_NOT_SPACE": re.compile(r"\S"),
    "CATEGORY_WORD": re.compile(r"\w"),
    "CATEGORY_NOT_WORD": re.compile(r"\W"),
}
_WITH_CHOICES = frozenset("*+?{|(")
"""A pattern without these characters matches in one way only: the library is quick."""

Places = frozenset[int]
Tree = Sequence[tuple[Any, Any]]


class ModulePatterns:
    """The patterns of one file, which share one bound."""

    def __init__(self, source: str) -> None:
        self._source = source
        self._left = _MOST_STEPS
        self._plain: dict[str, re.Pattern[str]] = {}
        self._trees: dict[str, Tree] = {}

    def matches(self, pattern: str, name: str) -> bool:
        """Whether the whole of `name` is as `pattern` says.

        Raises BadInputError for what is no regular expression or has parts that are not known here, and when the
        file's patterns take too many steps.
        """
        with self._refused(pattern):
            return len(name) in self._ends(self._tree(pattern), name, frozenset([0]))

    def ends_with(self, pattern: str, name: str) -> bool:
        """Whether `name`, or what follows a dot in it, is as `pattern` says. Raises BadInputError as `matches` does."""
        if not _WITH_CHOICES.isdisjoint(pattern):
            return self.matches(rf"(.*\.)?({pattern})", name)
        with self._refused(pattern):
            self._spend(1)
            if pattern not in self._plain:
                self._spend(_STEPS_TO_PARSE)
                self._plain[pattern] = re.compile(rf"(?:.*\.)?(?:{_checked(pattern)})")
            return self._plain[pattern].fullmatch(name) is not None

    @contextmanager
    def _refused(self, pattern: str) -> Iterator[None]:
        received = f"{self._source} has the pattern {pattern[:100]!r}"
        with refused_as_bad_input(received, expected=_EXPECTED, remedy=_REMEDY), warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of the library, about patterns that may mean another thing one day
            yield

    def _tree(self, pattern: str) -> Tree:
        if pattern not in self._trees:
            self._spend(_STEPS_TO_PARSE)
            parsed = _parser.parse(_checked(pattern))
            if parsed.state.flags != re.UNICODE:
                raise ValueError("it sets flags")
            self._trees[pattern] = parsed
        return self._trees[pattern]

    def _spend(self, steps: int) -> None:
        self._left -= steps
        if self._left < 0:
            raise BadInputError(
                f"{self._source} has patterns that take more than {_MOST_STEPS} steps to match",
                expected=_EXPECTED,
                remedy=_REMEDY,
            )

    def _ends(self, tree: Iterable[tuple[Any, Any]], name: str, starts: Places) -> Places:
        """Where a match of the tree's nodes, one behind the other, can end when it begins at one of `starts`."""
        for kind, value in tree:
            self._spend(1 + len(starts))
            starts = self._ends_of_node(str(kind), value, name, starts)
            if not starts:
                break
        return starts

    def _ends_of_node(self, kind: str, value: Any, name: str, starts: Places) -> Places:
        match kind:
            case "BRANCH":
                return frozenset[int]().union(*(self._ends(tree, name, starts) for tree in value[1]))
            case "SUBPATTERN":
                _group, added, removed, tree = value
                if added or removed:
                    raise ValueError("it sets flags")
                return self._ends(tree, name, starts)
            case "MAX_REPEAT" | "MIN_REPEAT":
                least, most, tree = value
                return self._ends_of_repeat(least, most, tree, name, starts)
            case "AT":
                return frozenset(place for place in starts if _is_at(str(value), name, place))
            case "ASSERT" | "ASSERT_NOT" if value[0] == 1:
                wanted = kind == "ASSERT"
                return frozenset(p for p in starts if bool(self._ends(value[1], name, frozenset([p]))) == wanted)
            case "LITERAL" | "NOT_LITERAL" | "ANY" | "IN":
                return frozenset(p + 1 for p in starts if p < len(name) and _is_one(kind, value, name[p]))
        raise ValueError(f"it has a part of the kind {kind.lower()}")

    def _ends_of_repeat(self, least: int, most: int, tree: Tree, name: str, starts: Places) -> Places:
        """Once all places of a round were reached before, further rounds add nothing."""
        for _ in range(least):
            following = self._ends(tree, name, starts)
            if following == starts:
                break
            starts = following
        reached = newest = starts
        rounds = most - least
        while newest and rounds > 0:
            newest = self._ends(tree, name, newest) - reached
            reached |= newest
            rounds -= 1
        return reached


def _checked(pattern: str) -> str:
    if len(pattern) > _LONGEST:
        raise ValueError(f"it has {len(pattern)} characters")
    return pattern


def _is_at(where: str, name: str, place: int) -> bool:
    match where:
        case "AT_BEGINNING" | "AT_BEGINNING_STRING":
            return place == 0
        case "AT_END" | "AT_END_STRING":
            return place == len(name)
        case "AT_BOUNDARY" | "AT_NON_BOUNDARY":
            before, behind = (bool(re.match(r"\w", name[p : p + 1])) if p >= 0 else False for p in (place - 1, place))
            return (before != behind) == (where == "AT_BOUNDARY")
    raise ValueError(f"it has a part of the kind {where.lower()}")


def _is_one(kind: str, value: Any, sign: str) -> bool:
    """Whether `sign` is the one character that the node stands for."""
    if kind == "ANY":
        return sign != "\n"
    if kind == "IN":
        negated = str(value[0][0]) == "NEGATE"
        return any(_is_one(str(inner), what, sign) for inner, what in value[negated:]) != negated
    if kind == "RANGE":
        return bool(value[0] <= ord(sign) <= value[1])
    if kind == "CATEGORY":
        return _CATEGORIES[str(value)].match(sign) is not None
    return bool((ord(sign) == value) == (kind == "LITERAL"))
