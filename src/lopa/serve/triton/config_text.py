"""Text of config.pbtxt: a model's configuration as a protocol buffer in text form. This module has no side effects."""

from collections.abc import Iterable, Mapping, Sequence

from lopa.serve.triton.groups import InstanceGroup
from lopa.serve.triton.triton_settings import DEVICE

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
