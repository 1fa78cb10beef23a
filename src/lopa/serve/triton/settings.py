"""What an operator says of a model in config.pbtxt: one frozen, checked record, and its parameters as texts."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, fields
from typing import Any

from lopa.runtime.checked_values import MAX_SECONDS, check_float, check_int
from lopa.runtime.decoder import MAX_PARALLEL
from lopa.runtime.devices import MAX_THREADS
from lopa.runtime.engine import MAX_NUM_SEQS, MAX_WAITING, QUEUE_LIMIT
from lopa.runtime.errors import BadInputError
from lopa.runtime.parallel.branch_session import STALL_SECONDS
from lopa.serve.limits import ServeLimits

BUNDLE = "bundle"
"""Of the folder beside model.py that the bundle was copied to."""
DEVICE = "device."
"""What the parameter with the devices of an instance group begins with; the group's name follows."""
PYTHON_PATH = "python_path"
"""Read by model.py, before there is anything of ours."""
_SHOWN = 80


@dataclass(frozen=True, kw_only=True)
class TritonSettings:
    """Of all engines of a model. Raises BadInputError for a number that is too small or too large."""

    bundle: str = BUNDLE
    """A path; a relative one starts at the folder of model.py."""
    max_num_seqs: int = MAX_NUM_SEQS
    """Requests that one engine runs at once."""
    queue_limit: int = QUEUE_LIMIT
    """Requests that may wait beside them, for each engine."""
    threads: int | None = None
    """Of one engine; None: its own choice."""
    device_timeout: float = STALL_SECONDS
    """Seconds after which one of several devices of an engine is given up."""
    max_tokens: int | None = None
    max_branches: int | None = None
    max_seconds: float | None = None
    limits: ServeLimits = field(init=False)
    """Of a request, by the three above."""

    def __post_init__(self) -> None:
        check_int("max_num_seqs", self.max_num_seqs, min=1, max=MAX_PARALLEL)
        check_int("queue_limit", self.queue_limit, min=0, max=MAX_WAITING)
        if self.threads is not None:
            check_int("threads", self.threads, min=1, max=MAX_THREADS)
        check_float("device_timeout", self.device_timeout, min=0.0, max=MAX_SECONDS, above=True)
        asked = {name: getattr(self, name) for name in ("max_tokens", "max_branches", "max_seconds")}
        limits = ServeLimits(**{name: value for name, value in asked.items() if value is not None})
        object.__setattr__(self, "limits", limits)


_WHOLE = ("max_num_seqs", "queue_limit", "threads", "max_tokens", "max_branches")
_NUMBERS = (*_WHOLE, "device_timeout", "max_seconds")


def parameters_of_settings(settings: TritonSettings) -> dict[str, str]:
    """As texts, those that are not the defaults, and always what one is likely to change."""
    found = {each.name: getattr(settings, each.name) for each in fields(settings) if each.init}
    always = ("bundle", "max_num_seqs", "queue_limit")
    return {
        name: str(value)
        for name, value in found.items()
        if value is not None and (name in always or value != getattr(TritonSettings, name))
    }


def settings_of_parameters(parameters: Mapping[str, str]) -> TritonSettings:
    """The settings in the parameters of a config.pbtxt. Names in capitals are Triton's own. Raises BadInputError."""
    known = ("bundle", *_NUMBERS)
    values: dict[str, Any] = {}
    for name, text in parameters.items():
        if name.isupper() or name == PYTHON_PATH or name.startswith(DEVICE):
            continue
        if name not in known:
            raise _wrong(name, text, ", ".join((*known, PYTHON_PATH, f"{DEVICE}GROUP")), "correct or remove it")
        values[name] = _number(name, text) if name in _NUMBERS else text
    return TritonSettings(**values)


def devices_of_parameters(parameters: Mapping[str, str]) -> dict[str, str]:
    """The devices of one engine, by the name of its instance group."""
    return {name.removeprefix(DEVICE): text for name, text in parameters.items() if name.startswith(DEVICE)}


def parameters_of_config(config: Mapping[str, Any]) -> dict[str, str]:
    """Names and texts of the parameters of a model, from its configuration as Triton tells it in JSON."""
    return {name: each.get("string_value", "") for name, each in config.get("parameters", {}).items()}


def kinds_of_config(config: Mapping[str, Any]) -> dict[str, str]:
    """The kinds of the instance groups, by their names."""
    groups: Iterable[Mapping[str, Any]] = config.get("instance_group", ())
    return {each["name"]: each["kind"] for each in groups}


def _number(name: str, text: str) -> int | float:
    try:
        return int(text) if name in _WHOLE else float(text)
    except ValueError as error:
        expected = "a whole number" if name in _WHOLE else "a number"
        raise _wrong(name, text, expected, "correct or remove it") from error


def _wrong(name: str, text: str, expected: str, remedy: str) -> BadInputError:
    return BadInputError(
        f"the parameter {name[:_SHOWN]} {text[:_SHOWN]!r} of the model",
        expected=expected,
        remedy=f"{remedy} in config.pbtxt",
    )
