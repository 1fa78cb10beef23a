"""Where a request should go: which model it names, and a key that is equal for requests which may share rows.

Pure. A replica keeps the rows of the prompts that it computed (docs/reference/python.md): they serve those
requests alone that have the very same prompt at the same temperature with a window that looks at nothing behind it.
"""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from lopa.serve.openai.options import OURS, PROMPT_FIELDS
from lopa.serve.ray.models import REUSED, ServedModels


@dataclass(frozen=True)
class Route:
    """What a router is told of a request."""

    model: str
    """Among those that are served."""
    key: str
    """"": any replica is as good."""


def route_of_body(body: Mapping[str, Any], endpoint: str, models: ServedModels) -> Route:
    """Of a body that nobody has checked: one that makes no sense goes anywhere, and is refused there."""
    named = body.get("model")
    if not isinstance(named, str) or named not in models.cards:
        return Route(models.first, "")
    ours = body.get(OURS)
    window = ours.get("window") if isinstance(ours, dict) else None
    if (models.windows[named] if window is None else window) != REUSED or endpoint not in PROMPT_FIELDS:
        return Route(named, "")
    same = (named, endpoint, body.get(PROMPT_FIELDS[endpoint]), body.get("temperature") or 0)
    return Route(named, hashlib.sha256(json.dumps(same, sort_keys=True).encode()).hexdigest())
