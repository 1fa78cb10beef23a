"""Fields of a result as JSON values."""

import dataclasses
import math
from typing import Any

from lopa.runtime.requests.result import GenerationResult


def fields_of_result(result: GenerationResult, *, prompt_ids: bool) -> dict[str, Any]:
    """Return the fields of a result by name. Fields that were not requested are omitted."""
    found = {field.name: getattr(result, field.name) for field in dataclasses.fields(result)}
    # These fields describe the run, not the answer. Without them, a second run writes the same file.
    del found["cached_tokens"], found["params"]
    if not prompt_ids:
        del found["prompt_ids"]
    return {name: _json_value(value) for name, value in found.items() if value is not None}


def _json_value(value: Any) -> Any:
    """Return None for NaN, the log-probability of a position that stayed masked, since JSON has no NaN.

    Records become objects.
    """
    if dataclasses.is_dataclass(value):
        return {field.name: _json_value(getattr(value, field.name)) for field in dataclasses.fields(value)}
    if isinstance(value, tuple):
        return [_json_value(each) for each in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
