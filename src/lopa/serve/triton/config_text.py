"""config.pbtxt: a model's configuration, in the text form of protocol buffers. Pure."""

from collections.abc import Iterable, Mapping, Sequence

from lopa.serve.triton.groups import InstanceGroup
from lopa.serve.triton.settings import DEVICE

TEXT, MESSAGES, OPTIONS, STREAM, DRAFTS = "text_input", "messages", "options", "stream", "drafts"
OUTPUT, DRAFT, FINISH, USAGE, LOGPROBS = "text_output", "draft", "finish_reason", "usage", "logprobs"
_INPUTS = {TEXT: "STRING", MESSAGES: "STRING", OPTIONS: "STRING", STREAM: "BOOL", DRAFTS: "BOOL"}
OUTPUTS = (OUTPUT, DRAFT, FINISH, USAGE, LOGPROBS)
"""All texts."""
_ESCAPES = {ord(each): f"\\{each}" for each in '"\\'} | {code: f"\\{code:03o}" for code in (*range(32), 127)}


def config_text(name: str, groups: Sequence[InstanceGroup], parameters: Mapping[str, str]) -> str:
    """The configuration of a decoupled model of the python backend; its inputs are all optional, which says no default.

    `parameters` are written behind those that say the devices of the groups.
    """
    devices = {f"{DEVICE}{group.name}": group.devices for group in groups}
    lines = [
        "# Written by `lopa-export triton`; docs/how-to/deploy.md says what each parameter means.",
        f"name: {_quoted(name)}",
        'backend: "python"',
        "# Requests share forwards inside an engine, round by round: Triton makes no batches of them.",
        "max_batch_size: 0",
        "model_transaction_policy { decoupled: true }",
        *_listed("input", (f"{_tensor(each, kind)} optional: true" for each, kind in _INPUTS.items())),
        *_listed("output", (_tensor(each, "STRING") for each in OUTPUTS)),
        *_listed("instance_group", map(_group, groups)),
        *(
            f"parameters {{ key: {_quoted(key)} value {{ string_value: {_quoted(text)} }} }}"
            for key, text in {**devices, **parameters}.items()
        ),
    ]
    return "\n".join(lines) + "\n"


def _tensor(name: str, kind: str) -> str:
    return f"name: {_quoted(name)} data_type: TYPE_{kind} dims: [ 1 ]"


def _group(group: InstanceGroup) -> str:
    gpus = f" gpus: [ {', '.join(map(str, group.gpus))} ]" if group.gpus else ""
    return f"name: {_quoted(group.name)} kind: {group.kind} count: {group.count}{gpus}"


def _listed(name: str, entries: Iterable[str]) -> list[str]:
    return [f"{name} [", ",\n".join(f"  {{ {entry} }}" for entry in entries), "]"]


def _quoted(text: str) -> str:
    return f'"{text.translate(_ESCAPES)}"'
