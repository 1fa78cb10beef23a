"""Operator limits on one request: a frozen record, checked at construction. This module does not depend on requests."""

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

from lopa.runtime.bundle.manifest import Preset
from lopa.runtime.errors import BadInputError
from lopa.runtime.options import MAX_AUTO_BRANCHES, MAX_BRANCHES, MAX_POSITIONS
from lopa.serve.setting import SettingsRecord, float_setting, int_setting

_CHOICES = "Maximum number of answers to one request: its prompts times its n."
_BODY = "Maximum size of a request's body in bytes."
_STALL = "Maximum time for a client to send its request, and to receive each part of its answer."
_KEEP_ALIVE = "Interval after which a stream without new text sends a comment."


@dataclass(frozen=True, kw_only=True)
class ServeLimits(SettingsRecord):
    """Limits that a server puts on every request. Raises BadInputError for a number that is out of range."""

    max_tokens: int | None = int_setting(
        None, 1, MAX_POSITIONS, "Maximum number of tokens of an answer.", default_text="model's limit"
    )
    max_seconds: float | None = float_setting(
        None, "Maximum duration of a request in seconds, including its time in the queue.", default_text="none"
    )
    max_branches: int = int_setting(
        MAX_BRANCHES, 1, MAX_BRANCHES, "Maximum number of branches of a request.", is_advanced=True
    )
    max_choices: int = int_setting(128, 1, 10**6, _CHOICES, is_advanced=True, is_http=True)
    max_body: int = int_setting(4 * 2**20, 1, 2**32, _BODY, is_advanced=True, is_http=True)
    stall_seconds: float = float_setting(30.0, _STALL, flag="stall", is_advanced=True, is_http=True)
    keep_alive_seconds: float = float_setting(15.0, _KEEP_ALIVE, flag="keep_alive", is_advanced=True, is_http=True)

    def check_defaults(self, defaults: Mapping[str, Any], presets: Mapping[str, Preset] = MappingProxyType({})) -> None:
        """Raise BadInputError for a decoding option, by default or in a preset, that requests are not allowed to use.

        The default `max_new_tokens` is not checked, because it is reduced to `max_tokens` if it is larger.
        """
        self._check_branches("default", defaults)
        for name, preset in presets.items():
            self._check_branches(f"preset {name} with", preset.options)

    def _check_branches(self, source: str, options: Mapping[str, Any]) -> None:
        branches = options.get("branches", 1)
        needed = MAX_AUTO_BRANCHES if branches == "auto" else branches
        if needed > self.max_branches:
            raise BadInputError(
                f"{source} branches {branches} exceeds --max-branches {self.max_branches}",
                expected="a value within the limits of a request",
                remedy=f"raise --max-branches to {needed}, or set --default branches={self.max_branches}",
            )
