"""Settings of a Triton model: the parameters of its config.pbtxt, whose values are texts."""

from collections.abc import Iterable, Mapping
from typing import Any

from lopa.serve.server_settings import ServerSettings
from lopa.serve.setting import record_from_values, settings_of

BUNDLE = "bundle"
"""Parameter with the bundle's path, relative to the folder of model.py, and name of the copied bundle's folder."""
DEVICE = "device."
"""Prefix of the parameters with the devices of an instance group; the group's name follows."""
PYTHON_PATH = "python_path"
"""Parameter that model.py reads before it imports lopa."""
SETTINGS = tuple(name for name, each in settings_of(ServerSettings).items() if not each.is_http)
"""Settings of a model."""
_ALWAYS = ("max_num_seqs", "queue_limit")


def parameters_from_settings(settings: ServerSettings) -> dict[str, str]:
    """Return max_num_seqs, queue_limit and all settings that differ from the defaults, as parameters."""
    table = settings_of(ServerSettings)
    found = {name: getattr(settings, name) for name in SETTINGS}
    return {name: str(value) for name, value in found.items() if name in _ALWAYS or value != table[name].default}


def settings_from_parameters(parameters: Mapping[str, str]) -> ServerSettings:
    """Return the settings in the parameters of a config.pbtxt. Triton's own parameters, in capitals, are skipped.

    Raises BadInputError for an unknown parameter or an invalid value.
    """
    given = {
        name: text
        for name, text in parameters.items()
        if not (name.isupper() or name in (BUNDLE, PYTHON_PATH) or name.startswith(DEVICE))
    }
    others = (BUNDLE, PYTHON_PATH, f"{DEVICE}GROUP")
    return record_from_values(ServerSettings, given, {name: name for name in SETTINGS}, others, "in config.pbtxt")


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
