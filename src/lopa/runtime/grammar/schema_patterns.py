"""Regular expressions of JSON schemas in the library's syntax, and a check of expressions of requests.

A schema's pattern is an expression of ECMA-262, and Python's `jsonschema` reads it as one of Python. Where the two
differ, a translated pattern has only the texts that match by both (or, for keys, those that match by either).
"""

import re

from lopa.runtime.errors import BadInputError

_SPACE = r"\t\n\x0b\x0c\r\x20\xa0\u1680\u2000-\u200a\u2028\u2029\u202f\u205f\u3000"
_BOTH = {"d": "0-9", "w": "0-9A-Za-z_", "s": _SPACE}
"""Characters of \\d, \\w and \\s by both rules."""
_EITHER = {"d": r"\p{Nd}", "w": r"\p{L}\p{N}_", "s": _SPACE + r"\x1c-\x1f\x85\ufeff"}
"""Characters of \\d, \\w and \\s by one of the rules at least."""
_NEVER_WRITTEN = r"\x00-\x07\x0b\x0e-\x1f"
"""Characters without an escape of their own. A class of all control characters has " and \\ too in the library."""
_CONTROLS = {"t": "\t", "n": "\n", "r": "\r", "f": "\f", "v": "\v"}
_ESCAPE = r"\\(?:x[0-9a-fA-F]{2}|u[0-9a-fA-F]{4}|[pP]\{\w+\}|[dDwWsStnrfv]|[^0-9A-Za-z])"
_ATOM = re.compile(rf"{_ESCAPE}|[^\\\]]", re.DOTALL)
_TOKEN = re.compile(
    rf"(?P<set>\[(?!\^?\])\^?(?:{_ATOM.pattern})+\])|(?P<escape>{_ESCAPE})"
    r"|(?P<group>\((?!\?)|\(\?(?:P?<\w+>|[is]*(?:-[is]+)?[:)]))"
    r"|(?P<repeat>(?:[*+?]|\{\d+(?:,\d*)?\})\??)(?![*+?]|\{\d)"
    r"|(?P<brace>\{(?!\d*,?\d*\}))|(?P<char>[^\\\[({*+?])",
    re.DOTALL,
)
_SET = re.compile(r"\\.|\[\^?\]?((?:\[:\^?\w+:\]|\\.|[^\\\]])*)(?:\]|\Z)", re.DOTALL)
_OPERATION = re.compile(r"\\.|(\[(?!:\^?\w+:\])|&&|--|~~)", re.DOTALL)


def pattern_for_library(pattern: str, *, either: bool = False) -> str:
    """Return the expression of the texts in which `pattern` is found by ECMA-262's and by Python's rules.

    With `either` these are the texts in which it is found by at least one of them. Raises BadInputError for a syntax
    that the two read differently, or that expressions lack.
    """
    found, place, dots, is_dot_all = [], 0, [], False
    while place < len(pattern):
        token = _TOKEN.match(pattern, place)
        text = _translated_set(token["set"], either) if token and token["set"] else token and token[0]
        if token is None or text is None:
            raise BadInputError(
                f"pattern {pattern!r:.200} has {pattern[place : place + 8]!r} at character {place + 1}",
                expected="a regular expression of ECMA-262 without look-around, back-references, \\b, empty classes "
                "and flags other than i and s",
                remedy="write it in another way, or escape the character",
            )
        place = token.end()
        match token.lastgroup:
            case "set":
                text = _written(text)
            case "escape":
                text = _translated(text, either)
                text = _written(text) if _is_set(token[0]) else text
            case "brace":
                text = "\\{"
            case "group" | "char" if text[0] == "(":
                flags = re.fullmatch(r"\(\?([is]*)-?([is]*)[:)]", text) or {1: "", 2: ""}
                dots += [] if text.endswith(")") else [is_dot_all]
                is_dot_all = ("s" in flags[1] or is_dot_all) and "s" not in flags[2]
            case "char" if text == ")":
                is_dot_all = dots.pop() if dots else False
            case "char" if text == "." and not is_dot_all:
                text = _written(r"[^\n]" if either else r"[^\n\r\u2028\u2029]")
            case "char" if text == "$" and either:
                text = r"\n?$"
        found.append(text)
    return "".join(found)


def _written(characters: str) -> str:
    """Return the class of those `characters` that an answer may contain."""
    return f"[{characters}&&[^{_NEVER_WRITTEN}]]"


def check_set_operations(expression: str) -> None:
    """Raise BadInputError for a class that is an operation on sets in Rust's syntax and plain characters elsewhere."""
    for each in _SET.finditer(expression):
        if any(operation[1] for operation in _OPERATION.finditer(each[1] or "")):
            raise BadInputError(
                f"the class {each[0]!r:.200} is an operation on sets in Rust's syntax",
                expected="a class without nested classes, &&, -- and ~~",
                remedy=r"write these characters as \x5b, \x26, \x2d and \x7e",
            )


def _translated(atom: str, either: bool) -> str:
    """Return an escape or a character for use inside and outside of a class."""
    letter = atom[1:2]
    if letter in ("d", "w", "s"):
        return f"[{(_EITHER if either else _BOTH)[letter]}]"
    if letter in ("D", "W", "S"):
        return f"[^{(_BOTH if either else _EITHER)[letter.lower()]}]"
    if letter in ("p", "P"):
        return atom
    code = int(atom[2:], 16) if letter in ("x", "u") else ord(_CONTROLS.get(letter, atom[-1]))
    return f"\\x{{{code:06x}}}"


def _translated_set(text: str, either: bool) -> str | None:
    """Return a class in the library's syntax, or None if a range in it ends before its start."""
    is_negated = text.startswith("[^")
    atoms = _ATOM.findall(text[1 + is_negated : -1])
    made, place = "", 0
    while place < len(atoms):
        last = atoms[place + 2] if atoms[place + 1 : place + 2] == ["-"] and place + 2 < len(atoms) else None
        first = _translated(atoms[place], either != is_negated)
        if last is None or _is_set(atoms[place]) or _is_set(last):
            made, place = made + first, place + 1
        else:
            end = _translated(last, either)
            if first > end:
                return None
            made, place = f"{made}{first}-{end}", place + 3
    return f"[{'^' * is_negated}{made}]"


def _is_set(atom: str) -> bool:
    return atom[1:2] in tuple("dDwWsSpP")
