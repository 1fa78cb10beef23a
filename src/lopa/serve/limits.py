"""What an operator allows one request: a frozen record, checked once. Knows no request."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from lopa.runtime.checked_values import MAX_SECONDS, check_float, check_int
from lopa.runtime.errors import BadInputError
from lopa.runtime.plan import MAX_AUTO_BRANCHES, MAX_BRANCHES, MAX_POSITIONS

_MAX_BYTES = 2**32


@dataclass(frozen=True, kw_only=True)
class ServeLimits:
    """Ceilings of a server. Raises BadInputError for a number that is too small or too large."""

    max_tokens: int | None = None
    """Most tokens that an answer may be asked for; None: as many as the model has positions."""
    max_branches: int = MAX_BRANCHES
    max_seconds: float | None = None
    """From the moment a request came in to its end, waiting included; None: no limit."""
    max_choices: int = 128
    """Answers to one request: its prompts times its n."""
    max_body: int = 4 * 2**20
    """Bytes."""
    stall_seconds: float = 30.0
    """In which a client has to send its whole request, and to take each part of its answer."""
    keep_alive_seconds: float = 15.0
    """After so long without anything to send a stream sends a comment."""

    def __post_init__(self) -> None:
        if self.max_tokens is not None:
            check_int("max_tokens", self.max_tokens, min=1, max=MAX_POSITIONS)
        check_int("max_branches", self.max_branches, min=1, max=MAX_BRANCHES)
        if self.max_seconds is not None:
            check_float("max_seconds", self.max_seconds, min=0.0, max=MAX_SECONDS, above=True)
        check_int("max_choices", self.max_choices, min=1, max=10**6)
        check_int("max_body", self.max_body, min=1, max=_MAX_BYTES)
        for name in ("stall_seconds", "keep_alive_seconds"):
            check_float(name, getattr(self, name), min=0.0, max=MAX_SECONDS, above=True)

    def check_defaults(self, defaults: Mapping[str, Any]) -> None:
        """Raise BadInputError for a default of decoding that no request may ask for.

        An answer's length is no such default: it becomes `max_tokens` where it is more.
        """
        branches = defaults.get("branches", 1)
        upper = MAX_AUTO_BRANCHES if branches == "auto" else branches
        if upper > self.max_branches:
            raise BadInputError(
                f"branches {branches} by default and --max-branches {self.max_branches}",
                expected="a default that a request may ask for",
                remedy=f"raise --max-branches to {upper}, or set --default branches={self.max_branches}",
            )
