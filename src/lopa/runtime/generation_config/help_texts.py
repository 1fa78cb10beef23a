"""What each option means, read from the documentation of GenerationConfig: the one place where it is written."""

import inspect
import re
from functools import cache

from lopa.runtime.generation_config.config import GenerationConfig

_ATTRIBUTES = re.compile(r"^Attributes:\n(.*)", re.MULTILINE | re.DOTALL)
_ATTRIBUTE = re.compile(r"^ {4}(\w+): (.*(?:\n {8}.*)*)", re.MULTILINE)
_DEFAULT = re.compile(r" Default: (.*)\.$")


@cache
def help_texts() -> dict[str, str]:
    """Return what each option does, by name, with its default in brackets as click writes it.

    The texts are empty where Python runs without documentation (-OO).
    """
    section = _ATTRIBUTES.search(inspect.cleandoc(GenerationConfig.__doc__ or ""))
    found = _ATTRIBUTE.findall(section[1]) if section else []
    return {name: _DEFAULT.sub(r"  [default: \1]", " ".join(text.split())) for name, text in found}
