"""The defaults of a bundle on one line."""

from collections.abc import Mapping
from typing import Any


def defaults_text(defaults: Mapping[str, Any]) -> str:
    """Return names and values with commas between them, or "as exported" without any."""
    return ", ".join(f"{name} {value}" for name, value in defaults.items()) or "as exported"
