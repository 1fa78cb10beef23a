"""Options of the application: args of `serve run` (strings) or of a YAML file, as a frozen record.

This module opens no bundle and does not depend on Ray.
"""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import msgspec

from lopa.runtime.checked_values import check_int
from lopa.runtime.device_families import parse_device, stages_of_device
from lopa.runtime.engine import MAX_WAITING
from lopa.runtime.errors import BadInputError
from lopa.serve.server_settings import ServerSettings, name_of_bundle
from lopa.serve.setting import flags_of, float_setting, int_setting, record_from_values, setting

_MAX_COUNT = 10**4
"""Maximum replicas, and processors and GPUs of one replica."""
_PLACE = "in `args:` of the YAML file or in the arguments of `serve run lopa.serve.ray:app`"
_GPUS = "GPUs that Ray reserves for a replica."
_BUNDLE_ARGS = ("bundle", "model")
_BUNDLES = "bundle=PATH with or without model=NAME, or a list of bundles, each a path or {path, model}"


class NamedBundle(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A bundle and its name in the API."""

    path: str
    model: str


def _check_bundles(name: str, value: Any) -> tuple[NamedBundle, ...]:
    """Return bundles with unique names and absolute paths, since replicas run in other working directories."""
    try:
        listed = msgspec.convert(value, tuple[str | NamedBundle, ...], from_attributes=True)
    except msgspec.ValidationError as error:
        raise BadInputError(f"invalid {name}: {error}", expected=_BUNDLES, remedy=f"correct {name}") from error
    if not listed:
        raise BadInputError("no bundle", expected=_BUNDLES, remedy="name one")
    bundles = tuple(_name_bundle(each) for each in listed)
    for model, count in Counter(each.model for each in bundles).items():
        if count > 1 or not model:
            raise BadInputError(
                f"{count} bundles named {model[:80]!r}",
                expected="a unique, non-empty name for each bundle",
                remedy="set names: bundles: [{path: PATH, model: NAME}, ...]",
            )
    return bundles


def _name_bundle(bundle: str | NamedBundle) -> NamedBundle:
    named = bundle if isinstance(bundle, NamedBundle) else NamedBundle(bundle, name_of_bundle(Path(bundle)))
    return NamedBundle(str(Path(named.path).absolute()), named.model)


@dataclass(frozen=True, kw_only=True)
class RayOptions(ServerSettings):
    """Checked options of the application. An option that is None is computed from others at construction."""

    bundles: tuple[NamedBundle, ...] = setting((), _check_bundles, "LIST", "Bundles, each a path or {path, model}.")
    bundles_open: int = int_setting(
        None, 1, MAX_WAITING, "Bundles that a replica keeps open at once.", default_text="all"
    )
    waiting: int = int_setting(64, 1, MAX_WAITING, "Maximum requests that wait while all replicas are full.")
    replicas: int | None = int_setting(None, 1, _MAX_COUNT, "Fixed number of replicas.")
    min_replicas: int = int_setting(None, 1, _MAX_COUNT, "Minimum number of replicas.", default_text="1")
    max_replicas: int = int_setting(None, 1, _MAX_COUNT, "Maximum number of replicas.", default_text="1")
    scale_up_seconds: float = float_setting(30.0, "Delay before more replicas start.", above=False)
    scale_down_seconds: float = float_setting(600.0, "Delay before replicas stop.", above=False)
    drain: float = float_setting(600.0, "Seconds that a stopping replica has to finish.", above=False)
    health_seconds: float = float_setting(5.0, "Seconds between two health checks of a replica.")
    cpus: float = float_setting(1.0, "Processors that Ray reserves for a replica.", max=_MAX_COUNT, above=False)
    gpus: float = float_setting(None, _GPUS, max=_MAX_COUNT, above=False, default_text="one per NVIDIA device")

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.replicas is not None and (self.min_replicas or self.max_replicas):
            raise BadInputError(
                "replicas together with min_replicas or max_replicas",
                expected="either a fixed number, or a minimum and maximum",
                remedy="remove one of them",
            )
        stages = [parse_device(stage) for device in self.devices for stage in stages_of_device(device)]
        low = self.min_replicas or self.replicas or 1
        computed = {
            "bundles_open": len(self.bundles),
            "min_replicas": low,
            "max_replicas": max(low, self.replicas or 1),
            "gpus": float(sum(stage.family.is_nvidia_gpu for stage in stages)),
            "threads": max(1, int(self.cpus)),
        }
        for name, value in computed.items():
            if getattr(self, name) is None:
                object.__setattr__(self, name, value)
        object.__setattr__(self, "replicas", None)  # so that a copy with both limits is not refused
        check_int("bundles_open", self.bundles_open, min=1, max=len(self.bundles))
        check_int("max_replicas", self.max_replicas, min=low, max=_MAX_COUNT)

    @property
    def capacity(self) -> int:
        """Maximum concurrent requests of a replica, the same as for one engine. A single bundle can fill it."""
        return self.max_num_seqs + self.queue_limit


def options_from_args(args: Mapping[str, Any]) -> RayOptions:
    """Return the checked options. Numbers may be strings, and lists may be comma-separated strings. Raises
    BadInputError."""
    bundle, model = (args.get(name) for name in _BUNDLE_ARGS)
    values = {name: value for name, value in args.items() if name not in _BUNDLE_ARGS}
    if (bundle is not None and args.get("bundles")) or (model is not None and bundle is None):
        received = "conflicting options bundle, bundles and model"
        raise BadInputError(received, expected=_BUNDLES, remedy=f"correct them {_PLACE}")
    if bundle is not None:
        values["bundles"] = [bundle if model is None else {"path": bundle, "model": model}]
    options = record_from_values(RayOptions, values, flags_of(RayOptions), _BUNDLE_ARGS, _PLACE)
    return replace(options, api_keys=options.api_keys and options.api_keys.absolute())
