"""Operator limits on one request: a frozen record, checked at construction. This module does not depend on requests."""

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

from lopa.runtime.bundle.manifest import Profile
from lopa.runtime.checked_values import MAX_SECONDS, check_float, check_int
from lopa.runtime.errors import BadInputError
from lopa.runtime.plan import MAX_AUTO_BRANCHES, MAX_BRANCHES, MAX_POSITIONS

_MAX_BYTES = 2**32


@dataclass(frozen=True, kw_only=True)
class ServeLimits:
    """Limits that a server puts on every request. Raises BadInputError for a number that is out of range."""

    max_tokens: int | None = None
    """Maximum value of `max_tokens` in a request, or None for the model's number of positions."""
    max_branches: int = MAX_BRANCHES
    max_seconds: float | None = None
    """Maximum seconds from the arrival of a request to its end, including the queue, or None without a limit."""
    max_choices: int = 128
    """Maximum choices of one request (its prompts times its n)."""
    max_body: int = 4 * 2**20
    """Maximum bytes of a request body."""
    stall_seconds: float = 30.0
    """Seconds a client has to send its whole request, and to accept each part of its answer."""
    keep_alive_seconds: float = 15.0
    """Seconds of silence on a stream after which a keep-alive comment is sent."""

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

    def check_defaults(
        self, defaults: Mapping[str, Any], profiles: Mapping[str, Profile] = MappingProxyType({})
    ) -> None:
        """Raise BadInputError for a decoding option, by default or in a profile, that requests are not allowed to use.

        The default `max_new_tokens` is not checked, because it is reduced to `max_tokens` if it is larger.
        """
        self._check_branches("default", defaults)
        for name, profile in profiles.items():
            self._check_branches(f"profile {name} with", profile.options)

    def _check_branches(self, source: str, options: Mapping[str, Any]) -> None:
        branches = options.get("branches", 1)
        needed = MAX_AUTO_BRANCHES if branches == "auto" else branches
        if needed > self.max_branches:
            raise BadInputError(
                f"{source} branches {branches} exceeds --max-branches {self.max_branches}",
                expected="a value within the limits of a request",
                remedy=f"raise --max-branches to {needed}, or set --default branches={self.max_branches}",
            )
