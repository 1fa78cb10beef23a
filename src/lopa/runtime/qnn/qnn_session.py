"""The contract on a Qualcomm NPU: context binaries from lopa-export qnn, with caches in host memory."""

import onnxruntime

from lopa.runtime.bundle import Bundle
from lopa.runtime.bundle.buckets import check_buckets_fit
from lopa.runtime.contract.rotary import RotaryAngles
from lopa.runtime.device_families import parse_device
from lopa.runtime.errors import BadInputError, error_text, raise_if_from_handler
from lopa.runtime.qnn.qnn_forward import QnnForward
from lopa.runtime.qnn.qnn_library import qnn_module, sdk_version, session_options
from lopa.runtime.qnn.qnn_manifest import QNN_ENGINES, SOCS, StoredQnnEngine, soc_of_machine
from lopa.runtime.sessions.host_session import HostSession
from lopa.runtime.sessions.prefix_cache import cache_shape_from_manifest


def open_session(bundle: Bundle, device: str, *, threads: int | None) -> HostSession:  # noqa: ARG001
    """Open the bundle's engine on "qnn", or the engine for one chip on "qnn:SOC". `threads` applies to CPUs only.

    Raises BadInputError for another device, and if the bundle has no engine for it. Also raises it for an engine that
    was compiled for other weights, for another chip, or by another QNN SDK.
    Raises MissingBackendError without onnxruntime-qnn or a device.
    """
    stored = _chosen_engine(bundle, parse_device(device, "qnn").rest)
    check_chip(stored, soc_of_machine(), bundle)
    module = qnn_module()
    check_engine(stored, bundle, sdk_version(module))
    options = session_options(module, stored.engine.target)
    sessions = {}
    for each in stored.engine.buckets:
        path = stored.folder / each.graph
        try:
            sessions[each.bucket] = onnxruntime.InferenceSession(path, options, enable_fallback=0)
        except Exception as error:  # ONNX Runtime raises its own exception classes
            raise_if_from_handler(error)
            raise BadInputError(
                f"{path} cannot be opened: {error_text(error)}",
                expected=f"a context binary for {stored.engine.soc} by QNN {stored.engine.sdk_version}",
                remedy=_rebuild(stored, bundle),
            ) from error
    dimensions = bundle.manifest.dimensions
    rotary = RotaryAngles(dimensions.rotary_size, dimensions.rope_theta)
    return HostSession(QnnForward(sessions, rotary), device, cache_shape_from_manifest(bundle.manifest))


def _chosen_engine(bundle: Bundle, soc: str) -> StoredQnnEngine:
    """Return the engine for the chip `soc`, or for this machine's chip if `soc` is empty."""
    engines = [QNN_ENGINES.read(folder) for folder in QNN_ENGINES.folders(bundle)]
    wanted = soc or (soc_of_machine() if len(engines) > 1 else None)
    fitting = [each for each in engines if wanted is None or each.engine.soc.lower() == wanted.lower()]
    if len(fitting) == 1:
        return fitting[0]
    if engines:
        names = ", ".join(each.engine.soc for each in engines)
        raise BadInputError(
            f"{bundle.path} has engines for {names}" + (f", but not for {wanted}" if wanted else ""),
            expected=f"an engine for {wanted}" if wanted else "the name of one chip",
            remedy=f"build one: lopa-export qnn {bundle.path} --soc {wanted}"
            if wanted
            else f"use --device qnn:{engines[0].engine.soc}",
        )
    raise BadInputError(
        f"{bundle.path} has no engine for Qualcomm NPUs",
        expected="a folder engines/qnn-* in the bundle",
        remedy=f"build one: lopa-export qnn {bundle.path} --soc SOC",
    )


def check_chip(stored: StoredQnnEngine, machine: str | None, bundle: Bundle) -> None:
    """Raise BadInputError if the engine is for another chip than `machine`, this machine's chip if it is known."""
    if machine is None or machine.upper() not in SOCS or stored.engine.soc == machine.upper():
        return
    raise BadInputError(
        f"{stored.folder} was compiled for {stored.engine.soc}, but this machine has {machine}",
        expected=f"an engine for {machine}",
        remedy=f"build one: lopa-export qnn {bundle.path} --soc {machine}",
    )


def check_engine(stored: StoredQnnEngine, bundle: Bundle, version: str) -> None:
    """Raise BadInputError unless the engine was built from this bundle's weights by QNN `version`."""
    if not stored.fits(bundle):
        raise BadInputError(
            f"{stored.folder} was built from other weights than {bundle.path}",
            expected="an engine built from this bundle",
            remedy=_rebuild(stored, bundle),
        )
    if stored.engine.sdk_version != version:
        raise BadInputError(
            f"{stored.folder} was compiled by QNN {stored.engine.sdk_version}, but {version} is installed",
            expected=f"an engine compiled by QNN {version}",
            remedy=f"{_rebuild(stored, bundle)}; or install onnxruntime-qnn {stored.engine.package_version}",
        )
    check_buckets_fit(
        [each.bucket for each in stored.engine.buckets],
        bundle.manifest,
        source=str(stored.folder),
        remedy=_rebuild(stored, bundle),
    )


def _rebuild(stored: StoredQnnEngine, bundle: Bundle) -> str:
    engine = stored.engine
    return f"build it again: lopa-export qnn {bundle.path} --soc {engine.soc_model}:{engine.htp_arch}"
