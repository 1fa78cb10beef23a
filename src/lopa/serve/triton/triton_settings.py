"""Operator's settings of a model in config.pbtxt: a frozen, checked record, and its parameters as texts."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, fields
from typing import Any

from lopa.runtime.checked_values import MAX_SECONDS, check_float, check_int
from lopa.runtime.decoder import MAX_PARALLEL
from lopa.runtime.devices import MAX_THREADS
from lopa.runtime.engine import MAX_NUM_SEQS, MAX_WAITING, QUEUE_LIMIT
from lopa.runtime.errors import BadInputError
from lopa.runtime.parallel.branch_session import STALL_SECONDS
from lopa.serve.serve_limits import ServeLimits

BUNDLE = "bundle"
"""Name of the folder next to model.py with the copied bundle."""
DEVICE = "device."
"""Prefix of the parameters with the devices of an instance group; the group's name follows."""
PYTHON_PATH = "python_path"
"""Parameter that model.py reads before it imports lopa."""
_MAX_SHOWN = 80


@dataclass(frozen=True, kw_only=True)
class TritonSettings:
    """Settings of all engines of a model. Raises BadInputError for a number that is out of range."""

    bundle: str = BUNDLE
    """Path of the bundle; relative paths start at the folder of model.py."""
    max_num_seqs: int = MAX_NUM_SEQS
    """Maximum requests that one engine runs at once."""
    queue_limit: int = QUEUE_LIMIT
    """Maximum requests that wait for each engine."""
    threads: int | None = None
    """Threads of one engine, or None for the engine's choice."""
    device_timeout: float = STALL_SECONDS
    """Seconds without an answer after which one of several devices of an engine counts as failed."""
    max_tokens: int | None = None
    max_branches: int | None = None
    max_seconds: float | None = None
    limits: ServeLimits = field(init=False)
    """Limits of a request, from the three fields above."""

    def __post_init__(self) -> None:
        check_int("max_num_seqs", self.max_num_seqs, min=1, max=MAX_PARALLEL)
        check_int("queue_limit", self.queue_limit, min=0, max=MAX_WAITING)
        if self.threads is not None:
            check_int("threads", self.threads, min=1, max=MAX_THREADS)
        check_float("device_timeout", self.device_timeout, min=0.0, max=MAX_SECONDS, above=True)
        given = {name: getattr(self, name) for name in ("max_tokens", "max_branches", "max_seconds")}
        limits = ServeLimits(**{name: value for name, value in given.items() if value is not None})
        object.__setattr__(self, "limits", limits)


_INTEGERS = ("max_num_seqs", "queue_limit", "threads", "max_tokens", "max_branches")
_NUMBERS = (*_INTEGERS, "device_timeout", "max_seconds")


def parameters_from_settings(settings: TritonSettings) -> dict[str, str]:
    """Return bundle, max_num_seqs, queue_limit and all settings that differ from the defaults, as parameters."""
    found = {each.name: getattr(settings, each.name) for each in fields(settings) if each.init}
    always = ("bundle", "max_num_seqs", "queue_limit")
    return {
        name: str(value)
        for name, value in found.items()
        if value is not None and (name in always or value != getattr(TritonSettings, name))
    }


def settings_from_parameters(parameters: Mapping[str, str]) -> TritonSettings:
    """Return the settings in the parameters of a config.pbtxt. Triton's own parameters, in capitals, are skipped.

    Raises BadInputError for an unknown parameter or an invalid value.
    """
    known = ("bundle", *_NUMBERS)
    values: dict[str, Any] = {}
    for name, text in parameters.items():
        if name.isupper() or name == PYTHON_PATH or name.startswith(DEVICE):
            continue
        if name not in known:
            raise _parameter_error(
                name, text, ", ".join((*known, PYTHON_PATH, f"{DEVICE}GROUP")), "correct or remove it"
            )
        values[name] = _number(name, text) if name in _NUMBERS else text
    return TritonSettings(**values)


def devices_from_parameters(parameters: Mapping[str, str]) -> dict[str, str]:
    """Return the devices of one engine by the name of its instance group."""
    return {name.removeprefix(DEVICE): text for name, text in parameters.items() if name.startswith(DEVICE)}


def parameters_from_config(config: Mapping[str, Any]) -> dict[str, str]:
    """Return a model's parameters, names and texts, from its configuration as Triton passes it in JSON."""
    return {name: each.get("string_value", "") for name, each in config.get("parameters", {}).items()}


def kinds_from_config(config: Mapping[str, Any]) -> dict[str, str]:
    """Return the kinds of the instance groups by name."""
    groups: Iterable[Mapping[str, Any]] = config.get("instance_group", ())
    return {each["name"]: each["kind"] for each in groups}


def _number(name: str, text: str) -> int | float:
    try:
        return int(text) if name in _INTEGERS else float(text)
    except ValueError as error:
        expected = "an integer" if name in _INTEGERS else "a number"
        raise _parameter_error(name, text, expected, "correct or remove it") from error


def _parameter_error(name: str, text: str, expected: str, remedy: str) -> BadInputError:
    return BadInputError(
        f"invalid model parameter {name[:_MAX_SHOWN]} {text[:_MAX_SHOWN]!r}",
        expected=expected,
        remedy=f"{remedy} in config.pbtxt",
    )
