"""Former names of options and arguments, accepted for one minor version. Values are not checked here."""

import functools
import warnings
from collections.abc import Callable, Mapping
from typing import Any, ParamSpec, TypeVar

from lopa.runtime.errors import BadInputError

_P = ParamSpec("_P")
_R = TypeVar("_R")

RENAMED_OPTIONS: Mapping[str, str] = {
    "decide_frontier": "unmask_first_masked",
    "lossless": "speculative",
    "per_step": "tokens_per_step",
    "published": "reference",
    "shared_rows": "deduplicate_rows",
    "take_back_limit": "remask_limit",
    "take_back_threshold": "remask_threshold",
}
"""Current name of each former name."""


def current_names(options: Mapping[str, Any]) -> dict[str, Any]:
    """Return `options` under current names. Raises BadInputError for an option under both names.

    It does not warn: files and requests keep their former names as aliases.
    """
    current: dict[str, Any] = {}
    for name, value in options.items():
        new = RENAMED_OPTIONS.get(name, name) if isinstance(name, str) else name
        if new != name and new in options:
            raise BadInputError(
                f"option {new} is given twice, once by its former name {name}",
                expected="one of the two names",
                remedy=f"remove {name}",
            )
        current[new] = value
    return current


def warn_renamed(old: str, new: str, *, stacklevel: int = 3) -> None:
    """Warn that the name `old` is deprecated; `stacklevel` counts as in warnings.warn."""
    warnings.warn(f"{old} is deprecated: use {new}", DeprecationWarning, stacklevel=stacklevel)


def former_attribute(owner: object, name: str) -> Any:
    """Return the attribute of `owner` whose former name is `name`, with a DeprecationWarning.

    Raises AttributeError for any other name, so that a class can call this from `__getattr__`.
    """
    new = RENAMED_OPTIONS.get(name)
    if new is None:
        raise AttributeError(f"{type(owner).__name__!r} object has no attribute {name!r}")
    warn_renamed(name, new, stacklevel=4)
    return getattr(owner, new)


def accept_former_arguments(renamed: Mapping[str, str]) -> Callable[[Callable[_P, _R]], Callable[_P, _R]]:
    """Return a decorator by which a function also takes keyword arguments under their former names."""

    def decorator(function: Callable[_P, _R]) -> Callable[_P, _R]:
        @functools.wraps(function)
        def with_current_names(*args: _P.args, **kwargs: _P.kwargs) -> _R:
            for old in [name for name in kwargs if name in renamed]:
                warn_renamed(old, renamed[old])
                kwargs.setdefault(renamed[old], kwargs.pop(old))
            return function(*args, **kwargs)

        return with_current_names

    return decorator
