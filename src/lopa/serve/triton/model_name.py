"""Model names, which are folder names and parts of URLs. This module has no side effects."""

import re

from lopa.runtime.checked_values import shown
from lopa.runtime.errors import BadInputError

_MAX_CHARACTERS = 128
_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]*", re.ASCII)


def check_model_name(name: str) -> str:
    """Return `name` if it is valid as a folder and in http://HOST/v2/models/NAME/generate. Raises BadInputError."""
    if _NAME.fullmatch(name) and len(name) <= _MAX_CHARACTERS:
        return name
    raise BadInputError(
        f"invalid model name {shown(name)}",
        expected=f"letters, digits, _, - and . ({_MAX_CHARACTERS} at most), the first a letter, a digit or _",
        remedy="choose another name with --model NAME",
    )
