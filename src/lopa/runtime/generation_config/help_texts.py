"""Help texts of the decoding options, read from the docstring of GenerationConfig."""

import inspect
import re
from functools import cache
from typing import NamedTuple

from lopa.runtime.generation_config.config import GenerationConfig

_ATTRIBUTES = re.compile(r"^Attributes:\n(.*)", re.MULTILINE | re.DOTALL)
_ATTRIBUTE = re.compile(r"^ {4}(\w+): (.*(?:\n {8}.*)*)", re.MULTILINE)
_DEFAULT = " Default: "


class HelpText(NamedTuple):
    """Meaning of an option and, if it is documented, its default; otherwise an empty text."""

    meaning: str = ""
    default: str = ""


@cache
def help_texts() -> dict[str, HelpText]:
    """Return the help text of each option by name.

    The result is empty if Python runs without docstrings (-OO).
    """
    section = _ATTRIBUTES.search(inspect.cleandoc(GenerationConfig.__doc__ or ""))
    found = _ATTRIBUTE.findall(section[1]) if section else []
    parts = ((name, " ".join(text.split()).partition(_DEFAULT)) for name, text in found)
    return {name: HelpText(meaning, default.removesuffix(".")) for name, (meaning, _, default) in parts}
