"""Reads the JSON objects of a checkpoint folder. Does not know what they mean."""

import json
from pathlib import Path
from typing import Any

from lopa.runtime.errors import BadInputError


def json_object_from_file(path: Path, *, remedy: str) -> dict[str, Any]:
    """The JSON object in `path`.

    Raises BadInputError, with `remedy`, for a file that is missing, unreadable, not JSON or not an object.
    """
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        raise BadInputError(f"{path} does not exist", expected="a JSON file", remedy=remedy) from error
    except OSError as error:
        raise BadInputError(
            f"{path} cannot be read: {error.strerror}", expected="a readable JSON file", remedy=remedy
        ) from error
    except (UnicodeDecodeError, json.JSONDecodeError) as error:
        raise BadInputError(f"{path} is not JSON: {error}", expected="a JSON object", remedy=remedy) from error
    if not isinstance(value, dict):
        raise BadInputError(f"{path} holds a {type(value).__name__}", expected="a JSON object", remedy=remedy)
    return value
