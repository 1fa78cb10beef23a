"""Text for the defaults of a bundle."""

from collections.abc import Mapping
from typing import Any


def defaults_text(defaults: Mapping[str, Any]) -> str:
    """Return names and values on one line, separated by commas, or "as exported" if there are none."""
    return ", ".join(f"{name} {value}" for name, value in defaults.items()) or "as exported"
