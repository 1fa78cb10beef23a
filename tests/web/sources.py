"""The TypeScript sources of lopa-web, for tests that compare them with Python."""

import re

from tests.web.installed import WEB


def source(name: str) -> str:
    """Return the text of a file in web/src."""
    return (WEB / "src" / name).read_text(encoding="utf-8")


def strings_in(text: str, name: str, end: str) -> list[str]:
    """Return the names in quotes from `name` to the first `end` behind it."""
    begin = text.index(name)
    return re.findall(r'"([a-z0-9_]+)"', text[begin : text.index(end, begin)])


def options_only_in_python() -> list[str]:
    """Return the decoding options that lopa-web rejects by name."""
    return strings_in(source("generation_config/config.ts"), "ONLY_IN_PYTHON", "];")
