"""Options of the application: args of `serve run` (strings) or of a YAML file, as a frozen record.

This module opens no bundle and does not depend on Ray.
"""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from lopa.runtime.checked_values import MAX_SECONDS, check_float, check_int, shown
from lopa.runtime.decoder import MAX_PARALLEL
from lopa.runtime.device_families import parse_device, stages_of_device
from lopa.runtime.devices import MAX_THREADS
from lopa.runtime.engine import MAX_NUM_SEQS, MAX_PREFIX_CACHE_TOKENS, MAX_WAITING, QUEUE_LIMIT
from lopa.runtime.errors import BadInputError
from lopa.runtime.mpi.mpi_link import on_mpi
from lopa.runtime.parallel.branch_session import STALL_SECONDS
from lopa.runtime.requests.shared_prefix import PREFIX_CACHE_TOKENS
from lopa.runtime.sessions.cpu_cores import check_devices
from lopa.serve.chat.call_format import FORMATS, CallFormat
from lopa.serve.serve_limits import ServeLimits

_MAX_REPLICAS = 10**4
_MAX_UNITS = 10**4
"""Maximum processors and GPUs of one replica."""
_LIMITS = ServeLimits()
_REMEDY = "correct it in `args:` of the YAML file or in the arguments of `serve run lopa.serve.ray:app`"


class NamedBundle(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A bundle and its name in the API."""

    path: str
    model: str


class _Args(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    bundle: str | None = None
    model: str | None = None
    bundles: tuple[str | NamedBundle, ...] = ()
    bundles_open: int | None = None
    devices: tuple[str, ...] | str = ("cpu",)
    device_timeout: float = STALL_SECONDS
    threads: int | None = None
    max_num_seqs: int = MAX_NUM_SEQS
    queue: int = QUEUE_LIMIT
    cache_tokens: int = PREFIX_CACHE_TOKENS
    tool_call_format: str | None = None
    waiting: int = 64
    max_tokens: int | None = _LIMITS.max_tokens
    max_branches: int = _LIMITS.max_branches
    max_seconds: float | None = _LIMITS.max_seconds
    max_choices: int = _LIMITS.max_choices
    max_body: int = _LIMITS.max_body
    stall: float = _LIMITS.stall_seconds
    keep_alive: float = _LIMITS.keep_alive_seconds
    api_keys: str | None = None
    allow_host: tuple[str, ...] | str = ()
    cors: tuple[str, ...] | str = ()
    replicas: int | None = None
    min_replicas: int | None = None
    max_replicas: int | None = None
    scale_up_seconds: float = 30.0
    scale_down_seconds: float = 600.0
    drain: float = 600.0
    health_seconds: float = 5.0
    cpus: float = 1.0
    gpus: float | None = None


@dataclass(frozen=True, kw_only=True)
class RayOptions:
    """Checked options of the application."""

    bundles: tuple[NamedBundle, ...]
    bundles_open: int
    """Number of bundles that a replica keeps open at once."""
    devices: tuple[str, ...]
    device_timeout: float
    threads: int
    max_num_seqs: int
    queue: int
    """Maximum queued requests of each open bundle of each replica, as in `lopa-export serve`."""
    cache_tokens: int
    """Maximum tokens in the prefix cache of each open bundle of each replica, as in `lopa-export serve`."""
    tool_call_format: CallFormat | None
    """Format of tool calls in all bundles; None to recognise it from each chat template."""
    waiting: int
    """Maximum requests that wait while all replicas are full."""
    limits: ServeLimits
    api_keys: Path | None
    allow_host: tuple[str, ...]
    cors: tuple[str, ...]
    min_replicas: int
    max_replicas: int
    scale_up_seconds: float
    scale_down_seconds: float
    drain: float
    """Seconds that a stopping replica has to finish its requests."""
    health_seconds: float
    """Seconds between two health checks of a replica."""
    cpus: float
    gpus: float

    @property
    def capacity(self) -> int:
        """Maximum concurrent requests of a replica, the same as for one engine. A single bundle can fill it."""
        return self.max_num_seqs + self.queue


def options_from_args(args: Mapping[str, Any]) -> RayOptions:
    """Return the checked options. Numbers may be strings, and lists may be comma-separated strings. Raises
    BadInputError."""
    given = _args_record(args)
    bundles = _bundles(given)
    devices = _split_list(given.devices)
    check_devices(devices)
    stages = [parse_device(stage) for device in devices for stage in stages_of_device(device)]
    if on_mpi(devices):
        raise BadInputError(
            f"devices {', '.join(devices)} span several processes",
            expected="devices of a single process",
            remedy=_REMEDY,
        )
    low, high = _replicas(given)
    cpus = check_float("cpus", given.cpus, min=0.0, max=_MAX_UNITS)
    gpus = float(sum(stage.family.is_nvidia_gpu for stage in stages)) if given.gpus is None else given.gpus
    threads = max(1, int(cpus)) if given.threads is None else given.threads
    opened = len(bundles) if given.bundles_open is None else given.bundles_open
    seconds = {
        name: check_float(name, getattr(given, name), min=0.0, max=MAX_SECONDS, above=above)
        for name, above in (
            ("device_timeout", True),
            ("scale_up_seconds", False),
            ("scale_down_seconds", False),
            ("drain", True),
            ("health_seconds", True),
        )
    }
    return RayOptions(
        bundles=bundles,
        bundles_open=check_int("bundles_open", opened, min=1, max=len(bundles)),
        devices=devices,
        threads=check_int("threads", threads, min=1, max=MAX_THREADS),
        max_num_seqs=check_int("max_num_seqs", given.max_num_seqs, min=1, max=MAX_PARALLEL),
        queue=check_int("queue", given.queue, min=0, max=MAX_WAITING),
        cache_tokens=check_int("cache_tokens", given.cache_tokens, min=0, max=MAX_PREFIX_CACHE_TOKENS),
        tool_call_format=_call_format(given.tool_call_format),
        waiting=check_int("waiting", given.waiting, min=1, max=MAX_WAITING),
        limits=ServeLimits(
            max_tokens=given.max_tokens,
            max_branches=given.max_branches,
            max_seconds=given.max_seconds,
            max_choices=given.max_choices,
            max_body=given.max_body,
            stall_seconds=given.stall,
            keep_alive_seconds=given.keep_alive,
        ),
        api_keys=None if given.api_keys is None else Path(given.api_keys).absolute(),
        allow_host=_split_list(given.allow_host),
        cors=_split_list(given.cors),
        min_replicas=low,
        max_replicas=high,
        cpus=cpus,
        gpus=check_float("gpus", gpus, min=0.0, max=_MAX_UNITS),
        **seconds,
    )


def _args_record(args: Mapping[str, Any]) -> _Args:
    unknown = sorted(set(args) - set(_Args.__struct_fields__), key=str)
    if unknown:
        raise BadInputError(
            f"unknown options {', '.join(shown(name) for name in unknown[:8])}",
            expected="options among " + ", ".join(_Args.__struct_fields__),
            remedy=_REMEDY,
        )
    try:
        return msgspec.convert(dict(args), _Args, strict=False)
    except msgspec.ValidationError as error:
        raise BadInputError(
            f"application args: {error}", expected="options of docs/how-to/deploy.md", remedy=_REMEDY
        ) from error


def _bundles(given: _Args) -> tuple[NamedBundle, ...]:
    """Return the bundles with unique names and absolute paths, since replicas run in other working directories."""
    listed = (*given.bundles, *(() if given.bundle is None else (given.bundle,)))
    if not listed or (given.bundle is not None and given.bundles) or (given.model is not None and given.bundle is None):
        raise BadInputError(
            "no bundle" if not listed else "conflicting options bundle, bundles and model",
            expected="bundle=PATH with or without model=NAME, or a list of bundles, each a path or {path, model}",
            remedy=_REMEDY,
        )
    bundles = tuple(_name_bundle(each, given.model) for each in listed)
    for name, count in Counter(each.model for each in bundles).items():
        if count > 1 or not name:
            raise BadInputError(
                f"{count} bundles named {name[:80]!r}",
                expected="a unique, non-empty name for each bundle",
                remedy="set names: bundles: [{path: PATH, model: NAME}, ...]",
            )
    return bundles


def _name_bundle(bundle: str | NamedBundle, model: str | None) -> NamedBundle:
    path = Path(bundle if isinstance(bundle, str) else bundle.path).absolute()
    if isinstance(bundle, NamedBundle):
        return NamedBundle(str(path), bundle.model)
    return NamedBundle(str(path), path.resolve().name if model is None else model)


def _replicas(given: _Args) -> tuple[int, int]:
    """Return the minimum and maximum number of replicas."""
    if given.replicas is not None and (given.min_replicas, given.max_replicas) != (None, None):
        raise BadInputError(
            "replicas together with min_replicas or max_replicas",
            expected="either a fixed number, or a minimum and maximum",
            remedy=_REMEDY,
        )
    fixed = 1 if given.replicas is None else check_int("replicas", given.replicas, min=1, max=_MAX_REPLICAS)
    low = fixed if given.min_replicas is None else given.min_replicas
    high = max(low, fixed) if given.max_replicas is None else given.max_replicas
    low = check_int("min_replicas", low, min=1, max=_MAX_REPLICAS)
    return low, check_int("max_replicas", high, min=low, max=_MAX_REPLICAS)


def _call_format(name: str | None) -> CallFormat | None:
    if name is not None and name not in FORMATS:
        raise BadInputError(
            f"tool_call_format {shown(name)}", expected=f"one of {', '.join(FORMATS)}, or none", remedy=_REMEDY
        )
    return None if name is None else FORMATS[name]


def _split_list(value: tuple[str, ...] | str) -> tuple[str, ...]:
    """Return a list, also from a comma-separated string."""
    given = value.split(",") if isinstance(value, str) else value
    return tuple(each.strip() for each in given)
