"""What an operator asks of the application: args of `serve run` (texts) or of a YAML file, as a frozen record.

Opens no bundle; knows nothing of Ray.
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
from lopa.runtime.engine import MAX_NUM_SEQS, MAX_WAITING, QUEUE_LIMIT
from lopa.runtime.errors import BadInputError
from lopa.runtime.mpi.link import on_mpi
from lopa.runtime.parallel.branch_session import STALL_SECONDS
from lopa.runtime.sessions.cpu_cores import check_devices
from lopa.serve.limits import ServeLimits

_MAX_REPLICAS = 10**4
_MAX_UNITS = 10**4
"""Of the processors and the GPUs that a replica may ask for."""
_LIMITS = ServeLimits()
_PLACE = "correct it in `args:` of the YAML file, or behind `serve run lopa.serve.ray:app`"


class NamedBundle(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A bundle and what clients call it."""

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
    """What every part of the application is made from."""

    bundles: tuple[NamedBundle, ...]
    bundles_open: int
    """Of them, those that a replica holds open at once."""
    devices: tuple[str, ...]
    device_timeout: float
    threads: int
    max_num_seqs: int
    queue: int
    """As of `lopa-export serve`, for each open bundle of each replica."""
    waiting: int
    """Requests that wait where no replica has a place."""
    limits: ServeLimits
    api_keys: Path | None
    allow_host: tuple[str, ...]
    cors: tuple[str, ...]
    min_replicas: int
    max_replicas: int
    scale_up_seconds: float
    scale_down_seconds: float
    drain: float
    """Seconds in which a replica that is to end answers what it has."""
    health_seconds: float
    """Between two looks at a replica."""
    cpus: float
    gpus: float

    @property
    def places(self) -> int:
        """Requests that a replica takes: as many as one engine has places, so that one bundle can fill it."""
        return self.max_num_seqs + self.queue


def options_from_args(args: Mapping[str, Any]) -> RayOptions:
    """Numbers may be texts, lists texts with commas. Raises BadInputError for whatever cannot be used."""
    given = _given(args)
    bundles = _bundles(given)
    devices = _listed(given.devices)
    check_devices(devices)
    stages = [parse_device(stage) for device in devices for stage in stages_of_device(device)]
    if on_mpi(devices):
        raise BadInputError(f"devices {', '.join(devices)}", expected="devices of one process", remedy=_PLACE)
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
        allow_host=_listed(given.allow_host),
        cors=_listed(given.cors),
        min_replicas=low,
        max_replicas=high,
        cpus=cpus,
        gpus=check_float("gpus", gpus, min=0.0, max=_MAX_UNITS),
        **seconds,
    )


def _given(args: Mapping[str, Any]) -> _Args:
    unknown = sorted(set(args) - set(_Args.__struct_fields__), key=str)
    if unknown:
        raise BadInputError(
            f"options {', '.join(shown(name) for name in unknown[:8])}",
            expected="among " + ", ".join(_Args.__struct_fields__),
            remedy=_PLACE,
        )
    try:
        return msgspec.convert(dict(args), _Args, strict=False)
    except msgspec.ValidationError as error:
        raise BadInputError(
            f"args of the application: {error}", expected="options of docs/ray.md", remedy=_PLACE
        ) from error


def _bundles(given: _Args) -> tuple[NamedBundle, ...]:
    """Each with a name of its own and a whole path, since replicas run in folders of their own."""
    listed = (*given.bundles, *(() if given.bundle is None else (given.bundle,)))
    if not listed or (given.bundle is not None and given.bundles) or (given.model is not None and given.bundle is None):
        raise BadInputError(
            "no bundle" if not listed else "bundle, bundles and model in a way that says too much",
            expected="bundle=PATH with or without model=NAME, or a list of bundles, each a path or {path, model}",
            remedy=_PLACE,
        )
    bundles = tuple(_named(each, given.model) for each in listed)
    for name, count in Counter(each.model for each in bundles).items():
        if count > 1 or not name:
            raise BadInputError(
                f"{count} bundles called {name[:80]!r}",
                expected="a name for each, by which clients ask for it",
                remedy="give names: bundles: [{path: PATH, model: NAME}, ...]",
            )
    return bundles


def _named(bundle: str | NamedBundle, model: str | None) -> NamedBundle:
    path = Path(bundle if isinstance(bundle, str) else bundle.path).absolute()
    if isinstance(bundle, NamedBundle):
        return NamedBundle(str(path), bundle.model)
    return NamedBundle(str(path), path.resolve().name if model is None else model)


def _replicas(given: _Args) -> tuple[int, int]:
    """The least and the most."""
    if given.replicas is not None and (given.min_replicas, given.max_replicas) != (None, None):
        raise BadInputError(
            "replicas beside min_replicas or max_replicas", expected="a number, or its least and most", remedy=_PLACE
        )
    fixed = 1 if given.replicas is None else check_int("replicas", given.replicas, min=1, max=_MAX_REPLICAS)
    low = fixed if given.min_replicas is None else given.min_replicas
    high = max(low, fixed) if given.max_replicas is None else given.max_replicas
    low = check_int("min_replicas", low, min=1, max=_MAX_REPLICAS)
    return low, check_int("max_replicas", high, min=low, max=_MAX_REPLICAS)


def _listed(value: tuple[str, ...] | str) -> tuple[str, ...]:
    """A list, also one written as a text with commas."""
    given = value.split(",") if isinstance(value, str) else value
    return tuple(each.strip() for each in given)
