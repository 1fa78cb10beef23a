"""Names of models: a folder's, and a part of addresses. Pure."""

import re

from lopa.runtime.checked_values import shown
from lopa.runtime.errors import BadInputError

_LONGEST = 128
_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]*", re.ASCII)


def checked_model_name(name: str) -> str:
    """`name`, if it can be a folder's and stand in http://HOST/v2/models/NAME/generate. Raises BadInputError."""
    if _NAME.fullmatch(name) and len(name) <= _LONGEST:
        return name
    raise BadInputError(
        f"the model name {shown(name)}",
        expected=f"letters, digits, _, - and . ({_LONGEST} at most), the first a letter, a digit or _",
        remedy="give another with --model NAME",
    )
