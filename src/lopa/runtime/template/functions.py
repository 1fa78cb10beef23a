"""Functions of chat templates: range, dict, namespace, raise_exception, strftime_now."""

from collections.abc import Callable, Mapping
from datetime import datetime
from typing import Any

from jinja2 import TemplateError

from lopa.runtime.template.budget import Budget
from lopa.runtime.template.methods import check_key
from lopa.runtime.template.values import Function, Namespace

FUNCTION_NAMES = ("range", "dict", "namespace", "raise_exception", "strftime_now")
_MAX_RANGE = 100_000
_MAX_FORMAT = 100


def template_functions(budget: Budget) -> dict[str, Any]:
    """Return the functions by name. Their results are charged to `budget`."""

    def new_dict(*values: Any, **named: Any) -> dict[Any, Any]:
        made: dict[Any, Any] = {}
        for given in (*values, named):
            pairs = list(given.items() if isinstance(given, Mapping) else given)
            budget.operations(len(pairs))
            made.update({check_key(key): value for key, value in pairs})
        return made

    functions: dict[str, Callable[..., Any]] = {
        "range": _range,
        "dict": new_dict,
        "namespace": lambda *values, **named: Namespace(new_dict(*values, **named)),
        "raise_exception": _raise_exception,
        "strftime_now": _time_now,
    }
    return {name: Function(name, run) for name, run in functions.items()}


def _range(*bounds: int) -> range:
    found = range(*bounds)
    if len(found) > _MAX_RANGE:
        raise OverflowError(f"Range too big. The sandbox blocks ranges larger than MAX_RANGE ({_MAX_RANGE}).")
    return found


def _raise_exception(message: Any) -> None:
    raise TemplateError(str(message)[:1000])


def _time_now(time_format: str) -> str:
    """Return the local time, formatted by strftime."""
    if (
        not isinstance(time_format, str)
        or len(time_format) > _MAX_FORMAT
        or any(digit in time_format for digit in "0123456789")
    ):
        raise TemplateError(f"strftime_now takes a format of at most {_MAX_FORMAT} characters without digits")
    return datetime.now().strftime(time_format)
