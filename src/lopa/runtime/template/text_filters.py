"""Filters of texts and numbers in chat templates: the filters of jinja that checkpoints' templates use.

Each takes the run, the value and the arguments, and behaves as in jinja.
"""

from collections.abc import Callable, Mapping
from typing import Any

from jinja2 import TemplateError

from lopa.runtime.errors import raise_if_from_handler
from lopa.runtime.template.budget import check_number
from lopa.runtime.template.evaluator import Evaluator
from lopa.runtime.template.methods import METHODS, replace_text, to_json, to_text
from lopa.runtime.template.text import change_case, join_marked

_MAX_INDENT = 64


def _text_method(name: str) -> Callable[..., Any]:
    method = METHODS[str][name]

    def run(run: Evaluator, value: Any, *values: Any, **named: Any) -> Any:
        return method(run.budget, to_text(run.budget, value), *values, **named)

    return run


def _title(run: Evaluator, value: Any) -> str:
    text = to_text(run.budget, value)
    run.budget.operations(len(text))
    letters, starts = [], True
    for letter in str(text):
        letters.append(letter.upper() if starts else letter.lower())
        starts = letter.isspace() or letter in "-({[<"
    return change_case(text, "".join(letters))


def _string(run: Evaluator, value: Any) -> str:
    return to_text(run.budget, value)


def _replace(run: Evaluator, value: Any, old: Any, new: Any, count: int | None = None) -> str:
    text, before, after = (to_text(run.budget, each) for each in (value, old, new))
    return replace_text(run.budget, text, before, after, -1 if count is None else count)


def _indent(run: Evaluator, value: Any, width: int | str = 4, first: bool = False, blank: bool = False) -> str:
    text = to_text(run.budget, value)
    if not (isinstance(width, str) or (isinstance(width, int) and width >= 0)) or (
        (len(width) if isinstance(width, str) else width) > _MAX_INDENT
    ):
        raise TemplateError(f"indent takes a width of at most {_MAX_INDENT}")
    indention = width if isinstance(width, str) else " " * width
    lines = METHODS[str]["splitlines"](run.budget, join_marked([text, "\n"]))
    run.budget.characters(2 * len(text) + len(lines) * (len(indention) + 1))
    parts: list[str] = [indention] if first else []
    for number, line in enumerate(lines):
        if number:
            parts.append("\n" + indention if line or blank else "\n")
        parts.append(line)
    return join_marked(parts)


def _json(run: Evaluator, value: Any, *values: Any, **named: Any) -> str:
    return to_json(run.budget, value, *values, **named)


def _int(run: Evaluator, value: Any, default: Any = 0, base: int = 10) -> Any:
    if isinstance(value, str):
        run.budget.characters(len(value))
    try:
        return check_number(int(value, base) if isinstance(value, str) and base != 10 else int(value))
    except (TypeError, ValueError, OverflowError) as error:
        raise_if_from_handler(error)
        try:
            return check_number(int(float(value)))
        except (TypeError, ValueError, OverflowError) as error:
            raise_if_from_handler(error)
            return default


def _float(run: Evaluator, value: Any, default: Any = 0.0) -> Any:
    if isinstance(value, str):
        run.budget.characters(len(value))
    try:
        return float(value)
    except (TypeError, ValueError, OverflowError) as error:
        raise_if_from_handler(error)
        return default


def _abs(_run: Evaluator, value: Any) -> Any:
    return abs(value)


TEXT_FILTERS: Mapping[str, Callable[..., Any]] = {
    "abs": _abs,
    "capitalize": _text_method("capitalize"),
    "float": _float,
    "indent": _indent,
    "int": _int,
    "lower": _text_method("lower"),
    "replace": _replace,
    "safe": _string,
    "string": _string,
    "title": _title,
    "tojson": _json,
    "trim": _text_method("strip"),
    "upper": _text_method("upper"),
}
