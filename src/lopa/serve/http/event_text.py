"""Server-sent events as bytes."""

from collections.abc import Mapping
from typing import Any

import msgspec

DONE = b"data: [DONE]\n\n"


def encode_event(value: object) -> bytes:
    """Return one event with `value` as JSON."""
    return b"data: " + msgspec.json.encode(value) + b"\n\n"


def encode_named_event(value: Mapping[str, Any]) -> bytes:
    """Return one event with `value` as JSON, named after its `type`."""
    return f"event: {value['type']}\n".encode() + encode_event(value)
