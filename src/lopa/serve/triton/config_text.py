"""config.pbtxt of a model: its text, a protocol buffer in text form, and the settings among its parameters."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from lopa.serve.server_settings import ServerSettings
from lopa.serve.setting import record_from_values, settings_of
from lopa.serve.triton.groups import InstanceGroup

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


TEXT, MESSAGES, OPTIONS, STREAM, DRAFTS = "text_input", "messages", "options", "stream", "drafts"
OUTPUT, DRAFT, FINISH, USAGE, LOGPROBS = "text_output", "draft", "finish_reason", "usage", "logprobs"
_INPUTS = {TEXT: "STRING", MESSAGES: "STRING", OPTIONS: "STRING", STREAM: "BOOL", DRAFTS: "BOOL"}
OUTPUTS = (OUTPUT, DRAFT, FINISH, USAGE, LOGPROBS)
"""Names of the outputs, all of type STRING."""
_ESCAPES = {ord(each): f"\\{each}" for each in '"\\'} | {code: f"\\{code:03o}" for code in (*range(32), 127)}


def config_text(name: str, groups: Sequence[InstanceGroup], parameters: Mapping[str, str]) -> str:
    """Return the configuration of a decoupled model of the python backend. All inputs are optional and have no default
    here.

    `parameters` follow the parameters with the devices of the groups.
    """
    devices = {f"{DEVICE}{group.name}": group.devices for group in groups}
    lines = [
        "# Written by `lopa-export triton`; docs/how-to/deploy.md describes the parameters.",
        f"name: {_quote(name)}",
        'backend: "python"',
        "# The engine batches requests itself, round by round, so Triton's batching is off.",
        "max_batch_size: 0",
        "model_transaction_policy { decoupled: true }",
        *_format_list("input", (f"{_tensor(each, kind)} optional: true" for each, kind in _INPUTS.items())),
        *_format_list("output", (_tensor(each, "STRING") for each in OUTPUTS)),
        *_format_list("instance_group", map(_group, groups)),
        *(
            f"parameters {{ key: {_quote(key)} value {{ string_value: {_quote(text)} }} }}"
            for key, text in {**devices, **parameters}.items()
        ),
    ]
    return "\n".join(lines) + "\n"


def _tensor(name: str, kind: str) -> str:
    return f"name: {_quote(name)} data_type: TYPE_{kind} dims: [ 1 ]"


def _group(group: InstanceGroup) -> str:
    gpus = f" gpus: [ {', '.join(map(str, group.gpus))} ]" if group.gpus else ""
    return f"name: {_quote(group.name)} kind: {group.kind} count: {group.count}{gpus}"


def _format_list(name: str, entries: Iterable[str]) -> list[str]:
    return [f"{name} [", ",\n".join(f"  {{ {entry} }}" for entry in entries), "]"]


def _quote(text: str) -> str:
    return f'"{text.translate(_ESCAPES)}"'
