"""Settings of a server: its devices, engine, limits and access, as one frozen, checked record.

`lopa-export serve`, Ray Serve's arguments and Triton's config.pbtxt are read into it. Each reader knows only its own
syntax (lopa.serve.setting).
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from lopa.runtime.chat.call_format import FORMATS, CallFormat
from lopa.runtime.decoder import NUM_SEQS_LIMIT
from lopa.runtime.device_families import parse_device, stages_of_device
from lopa.runtime.devices import MAX_THREADS
from lopa.runtime.engine import MAX_NUM_SEQS, MAX_PREFIX_CACHE_TOKENS, MAX_WAITING, QUEUE_LIMIT
from lopa.runtime.errors import BadInputError
from lopa.runtime.multi_device.branch_session import STALL_SECONDS
from lopa.runtime.requests.admission import MAX_NUM_BATCHED_TOKENS
from lopa.runtime.requests.prefix_tree import PREFIX_CACHE_TOKENS
from lopa.runtime.sessions.cpu_cores import check_devices
from lopa.serve.serve_limits import ServeLimits
from lopa.serve.setting import (
    ACCESS,
    DEVICE,
    QUALITY,
    check_path,
    check_texts,
    choice_setting,
    float_setting,
    int_setting,
    setting,
)

_TIMEOUT = "Stop using one of several devices when a forward on it takes longer than this."
_QUEUE = "Maximum number of waiting requests. Several answers of one request may exceed it."
_BATCHED = "Maximum number of prompt tokens of the requests that start in one round."
_CACHE = "Maximum number of tokens in the prefix cache, which keeps the keys and values of conversations; 0 for none."
_KEYS = "File with the accepted API keys, one per line."
_THREADS = "Number of threads of the engine."
_CORS = "Origin whose pages may send requests."
_HOSTS = "Host name that requests may be addressed to, e.g. behind a proxy; * for any."
_ANY_HOST = "addresses and localhost; any host if not on loopback"
_RECOGNISED = "recognised from the chat template"
_DRAIN = "Time for running requests to finish after SIGTERM or Ctrl-C."
_CALLS = "Format in which the model writes tool calls."


@dataclass(frozen=True, kw_only=True)
class ServerSettings(ServeLimits):
    """Settings of a server. Raises BadInputError for a value that is out of range, and for devices of MPI."""

    devices: tuple[str, ...] = setting(
        ("cpu",), check_texts, "TEXT", "Devices of one engine.", group=DEVICE, is_http=True
    )
    device_timeout: float = float_setting(STALL_SECONDS, _TIMEOUT, group=DEVICE, is_advanced=True)
    threads: int | None = int_setting(
        None, 1, MAX_THREADS, _THREADS, group=DEVICE, is_advanced=True, default_text="chosen by the engine"
    )
    max_num_seqs: int = int_setting(MAX_NUM_SEQS, 1, NUM_SEQS_LIMIT, "Maximum number of running requests.")
    queue_limit: int = int_setting(QUEUE_LIMIT, 0, MAX_WAITING, _QUEUE, flag="queue")
    max_num_batched_tokens: int = int_setting(
        MAX_NUM_BATCHED_TOKENS, 1, MAX_PREFIX_CACHE_TOKENS, _BATCHED, is_advanced=True
    )
    prefix_cache_tokens: int = int_setting(PREFIX_CACHE_TOKENS, 0, MAX_PREFIX_CACHE_TOKENS, _CACHE, flag="cache_tokens")
    tool_call_format: str | None = choice_setting(
        tuple(FORMATS), _CALLS, group=QUALITY, is_advanced=True, is_http=True, default_text=_RECOGNISED
    )
    api_keys: Path | None = setting(  # noqa: RUF009  # it returns a field
        None, check_path, "FILE", _KEYS, group=ACCESS, is_http=True, default_text="no authentication"
    )
    cors: tuple[str, ...] = setting((), check_texts, "ORIGIN", _CORS, group=ACCESS, is_http=True, default_text="none")
    allow_host: tuple[str, ...] = setting(
        (), check_texts, "NAME", _HOSTS, group=ACCESS, is_advanced=True, is_http=True, default_text=_ANY_HOST
    )
    drain: float = float_setting(60.0, _DRAIN, above=False, is_http=True)

    def __post_init__(self) -> None:
        super().__post_init__()
        check_server_devices(self.devices)

    @property
    def call_format(self) -> CallFormat | None:
        """Format of tool calls, or None to recognise it from the chat template."""
        return None if self.tool_call_format is None else FORMATS[self.tool_call_format]


def name_of_bundle(path: Path) -> str:
    """Return the model's name if none is given: that of the folder, or of the link, which may lead elsewhere later."""
    return (path.resolve() if path.name in ("", "..") else path).name


def check_server_devices(devices: Sequence[str]) -> None:
    """Raise BadInputError for devices that one process cannot open together, and for unknown names."""
    check_devices(devices)
    if any(parse_device(stage).family.spans_processes for device in devices for stage in stages_of_device(device)):
        raise BadInputError(
            f"devices {', '.join(devices)} span several processes",
            expected="devices of a single process",
            remedy="name devices of one process; several of them share the branches",
        )
