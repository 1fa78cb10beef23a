"""The properties of one decoding option, and the declaration of an option as a field of a dataclass."""

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, get_args

import numpy as np

from lopa.runtime.checked_values import check_bool, check_choice, check_float, check_int

LENGTH, QUALITY, STRUCTURE = "Length and sampling", "Speed and quality", "Structure"
BLOCKS = "Blocks and cache"
"""Groups of options in help texts. The options of one strategy are in a group of its own."""
OPTION = "option"
"""Key of an Option in the metadata of a dataclass's field."""
Check = Callable[[Any], Any]
"""Function that returns a value as a plain Python value, or raises BadInputError."""


@dataclass(frozen=True, kw_only=True)
class Option:
    """The properties of a decoding option."""

    name: str = ""
    """Name, by default that of the field that declares the option."""
    kind: Any = None
    """Type of its values: of the field that declares the option, or otherwise by default of the default value."""
    help: str
    group: str = ""
    advanced: bool = True
    """True if the command line lists the option only with --help-all."""
    default: Any = None
    """Value of the option if nobody sets it; None if there is no constant one. An option of a strategy may have a
    function that returns it for a value of max_new_tokens."""
    documented_default: str = ""
    """Description of a default that is not a constant."""
    conditional: bool = False
    """True if a parameters has the default, but other options are checked as if this one had no value."""
    in_config: bool = False
    """True if every config has a value: the default, which None does not replace by another one."""
    per_request: bool = False
    """True if only requests can set the option."""
    min: float = 0
    max: float = 1e9
    above: bool = False
    """True if a number has to exceed `min`."""
    infinite: bool = False
    """True if infinity is allowed."""
    check: Check | None = None
    """Check of a value; None for a check of the field's type, and of a number from `min` to `max`."""
    command_help: str = ""
    """Help text of the command line, if a value is given differently there."""

    @property
    def default_text(self) -> str:
        """The default in help texts; empty without one."""
        return self.documented_default or ("" if self.default in (None, ()) else str(self.default))

    def checked(self, value: Any) -> Any:
        """Return `value`, which is not None, as a plain Python value. Raises BadInputError for an invalid value."""
        if self.check is not None:
            return self.check(value)
        kind = type(self.default) if self.kind is None else self.kind
        if kind is bool:
            return check_bool(self.name, value)
        if kind is int:
            return check_int(self.name, value, min=int(self.min), max=int(self.max))
        if kind is not float:
            return check_choice(self.name, value, get_args(kind))
        if self.infinite and isinstance(value, (float, np.floating)) and value == math.inf:
            return math.inf
        return check_float(self.name, value, min=self.min, max=self.max, above=self.above)

    def value(self, given: Any, max_new_tokens: int) -> Any:
        """Return the checked value `given`, or the default for None. Raises BadInputError for an invalid value."""
        if given is not None:
            return self.checked(given)
        return self.default(max_new_tokens) if callable(self.default) else self.default


def option(group: str, help: str, **properties: Any) -> Any:
    """Return the field of a dataclass that declares an option with these properties of Option."""
    declared = Option(group=group, help=help, **properties)
    return field(default=declared.default if declared.in_config else None, metadata={OPTION: declared})
