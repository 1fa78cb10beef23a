"""Reader of config.pbtxt into Triton's JSON form, for the syntax that lopa writes."""

import re
from typing import Any

_TOKEN = re.compile(r'\s*(?:#[^\n]*\n\s*)*(?:("(?:[^"\\\n]|\\.)*")|([A-Za-z_]\w*)|(-?\d+(?:\.\d+)?)|([:{}\[\],]))')


def config_of_text(text: str) -> dict[str, Any]:
    """Return the config. Repeated fields are lists; `parameters` is a mapping, as in Triton's JSON."""
    tokens = _Tokens(text)
    found = _message(tokens, end="")
    parameters = found.get("parameters", [])
    by_key = {each["key"]: each["value"] for each in (parameters if isinstance(parameters, list) else [parameters])}
    return {**found, "parameters": by_key}


class _Tokens:
    def __init__(self, text: str) -> None:
        self._found = []
        position, text = 0, text.rstrip()
        while position < len(text):
            match = _TOKEN.match(text, position)
            assert match is not None, f"not in text form: {text[position : position + 40]!r}"
            self._found.append(match)
            position = match.end()
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
        assert name, "a field needs a name"
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
    assert colon, "a scalar needs a colon"
    if match[1]:
        return re.sub(r"\\(?:(\d{3})|(.))", lambda one: chr(int(one[1], 8)) if one[1] else one[2], match[1][1:-1])
    if match[3]:
        return float(match[3]) if "." in match[3] else int(match[3])
    return {"true": True, "false": False}.get(match[2], match[2])
