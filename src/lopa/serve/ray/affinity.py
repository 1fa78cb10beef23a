"""Routing key of a request: its model, and a key shared by requests that may reuse the same prompt rows.

A replica caches the rows of prompts that it computed (docs/reference/python.md). Only requests with the same prompt and
temperature can use them, and only if the window does not attend to later positions. This module has no side effects.
"""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from lopa.serve.openai.body_options import LOPA_FIELD, PROMPT_FIELDS
from lopa.serve.ray.served_models import REUSABLE_WINDOW, ServedModels


@dataclass(frozen=True)
class Route:
    """Routing information of a request."""

    model: str
    """Name of a served model."""
    key: str
    """Key of the prompt; "" means that any replica is suitable."""


def route_from_body(body: Mapping[str, Any], endpoint: str, models: ServedModels) -> Route:
    """Return the route of an unchecked body. An invalid body may go to any replica, which rejects it."""
    model = body.get("model")
    if not isinstance(model, str) or model not in models.cards:
        return Route(models.first, "")
    lopa_object = body.get(LOPA_FIELD)
    window = lopa_object.get("window") if isinstance(lopa_object, dict) else None
    if (models.windows[model] if window is None else window) != REUSABLE_WINDOW or endpoint not in PROMPT_FIELDS:
        return Route(model, "")
    cache_key = (model, endpoint, body.get(PROMPT_FIELDS[endpoint]), body.get("temperature") or 0)
    return Route(model, hashlib.sha256(json.dumps(cache_key, sort_keys=True).encode()).hexdigest())
