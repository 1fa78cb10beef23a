"""Reads config.pbtxt into what Triton tells a model in JSON, as far as our configurations go."""

import re
from typing import Any

_TOKEN = re.compile(r'\s*(?:#[^\n]*\n\s*)*(?:("(?:[^"\\\n]|\\.)*")|([A-Za-z_]\w*)|(-?\d+(?:\.\d+)?)|([:{}\[\],]))')


def config_of_text(text: str) -> dict[str, Any]:
    """Fields that are given several times are lists; `parameters` is a mapping, as in Triton's JSON."""
    tokens = _Tokens(text)
    found = _message(tokens, end="")
    parameters = found.get("parameters", [])
    told = {each["key"]: each["value"] for each in (parameters if isinstance(parameters, list) else [parameters])}
    return {**found, "parameters": told}


class _Tokens:
    def __init__(self, text: str) -> None:
        self._found = []
        place, text = 0, text.rstrip()
        while place < len(text):
            match = _TOKEN.match(text, place)
            assert match is not None, f"not of the text form: {text[place : place + 40]!r}"
            self._found.append(match)
            place = match.end()
        self._next = 0

    def peek(self) -> str:
        return self._found[self._next][0].strip().splitlines()[-1].strip() if self._next < len(self._found) else ""

    def take(self) -> Any:
        match = self._found[self._next]
        self._next += 1
        return match


def _message(tokens: _Tokens, end: str) -> dict[str, Any]:
    found: dict[str, Any] = {}
    while tokens.peek() != end:
        name = tokens.take()[2]
        assert name, "a field has a name"
        colon = tokens.peek() == ":"
        if colon:
            tokens.take()
        value = _value(tokens, colon=colon)
        if name in found:
            found[name] = [*(found[name] if isinstance(found[name], list) else [found[name]]), value]
        else:
            found[name] = value
    if end:
        tokens.take()
    return found


def _value(tokens: _Tokens, *, colon: bool) -> Any:
    match = tokens.take()
    if match[4] == "{":
        return _message(tokens, "}")
    if match[4] == "[":
        values = []
        while tokens.peek() != "]":
            values.append(_value(tokens, colon=True))
            if tokens.peek() == ",":
                tokens.take()
        tokens.take()
        return values
    assert colon, "a scalar stands behind a colon"
    if match[1]:
        return re.sub(r"\\(?:(\d{3})|(.))", lambda one: chr(int(one[1], 8)) if one[1] else one[2], match[1][1:-1])
    if match[3]:
        return float(match[3]) if "." in match[3] else int(match[3])
    return {"true": True, "false": False}.get(match[2], match[2])
