"""Registered strategies that raise, for tests of batches in which other requests go on."""

from dataclasses import replace
from typing import Any

import pytest

from lopa.runtime.strategy import STRATEGIES, installed, register_strategy

FAILING = {"fails_in_a_step": "branch_confidence", "fails_at_once": "confidence"}
"""Function of each strategy that raises: in a step, or before the request is submitted."""


def register_failing_strategies(monkeypatch: pytest.MonkeyPatch) -> None:
    """Register the strategies FAILING for one test."""
    monkeypatch.setattr(installed, "_registered", {})
    for name, field in FAILING.items():
        failing: dict[str, Any] = {field: _raise}
        register_strategy(replace(STRATEGIES["lopa"], name=name, **failing))


def _raise(*_: object) -> Any:
    raise ZeroDivisionError
