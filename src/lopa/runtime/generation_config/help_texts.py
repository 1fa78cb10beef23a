"""Help texts of the decoding options, read from the docstring of GenerationConfig."""

import inspect
import re
from functools import cache

from lopa.runtime.generation_config.config import GenerationConfig

_ATTRIBUTES = re.compile(r"^Attributes:\n(.*)", re.MULTILINE | re.DOTALL)
_ATTRIBUTE = re.compile(r"^ {4}(\w+): (.*(?:\n {8}.*)*)", re.MULTILINE)
_DEFAULT = re.compile(r" Default: (.*)\.$")


@cache
def help_texts() -> dict[str, str]:
    """Return the help text of each option by name, with its default in click's form.

    The result is empty if Python runs without docstrings (-OO).
    """
    section = _ATTRIBUTES.search(inspect.cleandoc(GenerationConfig.__doc__ or ""))
    found = _ATTRIBUTE.findall(section[1]) if section else []
    return {name: _DEFAULT.sub(r"  [default: \1]", " ".join(text.split())) for name, text in found}
