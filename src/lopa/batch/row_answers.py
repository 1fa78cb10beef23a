"""Answers to rows of a table with an engine. This module does not depend on Ray."""

from collections.abc import Iterable, Mapping
from typing import Any

from lopa.batch.plain_line import PROMPT_FIELDS, fields_of_result, options_of_prompt, prompt_from_fields
from lopa.runtime.engine import Engine
from lopa.runtime.errors import REQUEST_ERRORS, LopaError, errors_as_bad_input
from lopa.runtime.generation_config import GenerationConfig, check_names
from lopa.runtime.requests.handle import RequestHandle

ANSWER_FIELDS = (
    "text",
    "token_ids",
    "stop_reason",
    "steps",
    "tokens",
    "generated_positions",
    "seconds",
    "seed",
    "branches",
    "error",
)
"""Columns of an answer. `error` is empty for an answer; otherwise all others are None."""


OPTIONS_FIELD = "lopa"
"""Column with the decoding options of a row, as in bodies of HTTP requests. Columns of data sets are often named like
an option: `choices`, `steps`, `seed`."""


def answers_to_rows(
    engine: Engine, rows: Iterable[Mapping[str, Any]], options: Mapping[str, Any]
) -> list[dict[str, Any]]:
    """Return the values of ANSWER_FIELDS for each row, in order. All rows run in the engine at once.

    A row has a "prompt", "prompt_ids" or "messages". Decoding options by name in its column OPTIONS_FIELD replace
    `options` for this row (see options_of_prompt). Values of None count as missing, a seed too, since tables have them
    for what other rows set. Other columns are ignored. A row that cannot be used, or whose strategy fails, gets an
    error. Raises the engine's errors if its device fails.
    """
    return [_answer(each) for each in [_submit(engine, row, options) for row in rows]]


def _submit(engine: Engine, row: Mapping[str, Any], options: Mapping[str, Any]) -> RequestHandle | LopaError:
    try:
        with errors_as_bad_input("the row cannot be used", expected="a prompt and options", remedy="correct the row"):
            prompt = prompt_from_fields({name: row[name] for name in PROMPT_FIELDS if row.get(name) is not None})
            given = {} if row.get(OPTIONS_FIELD) is None else row[OPTIONS_FIELD]
            check_names(given)
            own = {name: value for name, value in given.items() if value is not None}
            return engine.submit(prompt, GenerationConfig.from_mapping(options_of_prompt(options, own)))
    except REQUEST_ERRORS as error:
        return error


def _answer(outcome: RequestHandle | LopaError) -> dict[str, Any]:
    try:
        if isinstance(outcome, LopaError):
            raise outcome
        fields = fields_of_result(outcome.result(), prompt_ids=False)
    except REQUEST_ERRORS as error:
        return {**dict.fromkeys(ANSWER_FIELDS), "error": str(error)}
    return {**{name: fields.get(name) for name in ANSWER_FIELDS}, "error": ""}
