"""Regular expressions of JSON schemas in the library's syntax, and a check of expressions of requests.

A schema's pattern is an expression of ECMA-262, and Python's `jsonschema` reads it as one of Python. Where the two
differ, a translated pattern has only the texts that match by both (or, for keys, those that match by either).
"""

import re

from lopa.runtime.errors import BadInputError
from lopa.runtime.grammar.schema_references import keyword_error

_SPACE = r"\t\n\x0b\x0c\r\x20\xa0\u1680\u2000-\u200a\u2028\u2029\u202f\u205f\u3000"
_BOTH = {"d": "0-9", "w": "0-9A-Za-z_", "s": _SPACE}
"""Characters of \\d, \\w and \\s by both rules."""
_EITHER = {"d": r"\p{Nd}", "w": r"\p{L}\p{N}_", "s": _SPACE + r"\x1c-\x1f\x85\ufeff"}
"""Characters of \\d, \\w and \\s by one of the rules at least."""
_NEVER_WRITTEN = r"\x00-\x07\x0b\x0e-\x1f"
"""Characters without an escape of their own. A class of all control characters has " and \\ too in the library."""
_FOLDED_I = (r"\x{000049}", r"\x{000069}", r"\x{000130}", r"\x{000131}")
"""Letters that Python takes for i if case is ignored. ECMA-262 takes only the first two."""
_NEW_CASES = r"\x{19b}\x{264}\x{1c89}\x{1c8a}\x{a7cb}-\x{a7cd}\x{a7da}-\x{a7dc}\x{10d50}-\x{10d65}\x{10d70}-\x{10d85}"
"""Letters whose other case is newer than Unicode 14, so that a version of Python may not know it."""
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
    found, checked, place, outer = [], "", 0, []
    flags: frozenset[str] = frozenset()
    while place < len(pattern):
        token = _TOKEN.match(pattern, place)
        text = token[0] if token else ""
        folds = "i" in flags
        has_case = text.startswith("\\") or text.isalpha() or text > "\x7f"
        if token and (token["set"] or _is_set(token[0]) or (folds and has_case)):
            text = _translated_set(token["set"] or f"[{text}]", either, folds)
        if not (token and text):
            raise BadInputError(
                f"pattern {pattern!r:.200} has {pattern[place : place + 8]!r} at character {place + 1}",
                expected="a regular expression of ECMA-262 without look-around, back-references, \\b, empty classes "
                "and flags other than i and s",
                remedy="write it in another way, or escape the character",
            )
        place = token.end()
        checked += "." * len(token[0]) if _is_set(token[0]) or token["set"] else token[0].replace("(?<", "(?P<")
        match token.lastgroup:
            case "escape" if text == token[0]:
                text = _translated(text, either)
            case "brace":
                text = "\\{"
            case "group" | "char" if text[0] == "(":
                changed = re.fullmatch(r"\(\?([is]*)-?([is]*)[:)]", text) or {1: "", 2: ""}
                outer += [] if text.endswith(")") else [flags]
                flags = (flags | {*changed[1]}) - {*changed[2]}
            case "char" if text == ")" and outer:
                flags = outer.pop()
            case "char" if text == "." and "s" not in flags:
                text = _written(r"[^\n]" if either else r"[^\n\r\u2028\u2029]")
            case "char" if text == "$" and either:
                text = r"\n?$"
        found.append(text)
    try:
        re.compile(checked)
    except (re.error, OverflowError, RecursionError) as error:
        raise keyword_error("pattern", f"{pattern!r:.99} ({error})", "an expression that Python's re reads") from error
    return "".join(found)


def _written(characters: str, never: str = "") -> str:
    """Return the class of those `characters` that an answer may contain, without those of `never`."""
    return f"[{characters}&&[^{_NEVER_WRITTEN}{never}]]"


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


def _translated_set(text: str, either: bool, folds: bool) -> str:
    """Return a class in the library's syntax, or nothing for a range that is none. With `folds` case is ignored."""
    is_negated = text.startswith("[^")
    atoms = _ATOM.findall(text[1 + is_negated : -1])
    made, place, is_new, has_i = "", 0, is_negated, False
    while place < len(atoms):
        size = 3 if atoms[place + 1 : place + 2] == ["-"] and place + 2 < len(atoms) else 1
        last = atoms[place + size - 1]
        first, end = (_translated(each, either != is_negated) for each in (atoms[place], last))
        is_beyond = folds and len(atoms) > 1 and end > r"\x{00ffff}"  # Python reads these in another way
        if first > end or is_beyond or (size > 1 and (_is_set(atoms[place]) or _is_set(last))):
            return ""
        is_new = is_new or _is_set(last) or end > r"\x{00007f}"
        has_i = has_i or any(first <= each <= end for each in _FOLDED_I)
        made, place = f"{made}{first}-{end}" if size > 1 else made + first, place + size
    if folds and has_i and either != is_negated:
        made += "".join(_FOLDED_I)
    cases = _NEW_CASES if folds and is_new else ""
    made = f"[{'^' * is_negated}{made}]"
    return _written(f"[{made}{cases}]") if either else _written(made, cases)


def _is_set(atom: str) -> bool:
    return atom[1:2] in tuple("dDwWsSpP")
