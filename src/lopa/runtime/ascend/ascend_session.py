"""The contract on an Ascend NPU: OMs from lopa-export ascend, run by pyACL, with caches in device memory.

This module selects a bundle's engine for the device. pyACL is part of CANN and is imported when a session opens.
"""

from contextlib import ExitStack
from functools import partial

from lopa.runtime import contract
from lopa.runtime.accelerator.device_cache import row_bytes
from lopa.runtime.accelerator.device_session import DeviceSession
from lopa.runtime.ascend.acl_memory import COPY_ALIGNMENT, AclMemory
from lopa.runtime.ascend.ascend_forward import AscendForward
from lopa.runtime.ascend.ascend_manifest import ASCEND_ENGINES, StoredAscendEngine
from lopa.runtime.ascend.process import THE_PROCESS
from lopa.runtime.bundle import Bundle
from lopa.runtime.bundle.buckets import check_buckets_fit
from lopa.runtime.contract import ROTARY_COS, stored_dtype, window_names
from lopa.runtime.contract.portable_form import portable_input_names
from lopa.runtime.contract.rotary import RotaryAngles
from lopa.runtime.device_families import parse_device
from lopa.runtime.errors import BadInputError
from lopa.runtime.sessions.device_worker import ThreadedSession
from lopa.runtime.sessions.prefix_cache import CacheShape

_BUILD = "lopa-export ascend {} --soc-version SOC"
_STATISTICS = {contract.TOPK_IDS: "int64", contract.TOPK_LOGPROBS: "float32", contract.ENTROPY: "float32"}


def open_session(bundle: Bundle, device: str, *, threads: int | None) -> ThreadedSession:  # noqa: ARG001
    """Open the bundle's engine on "ascend:N". `threads` applies to CPUs only.

    Raises BadInputError for another device, and if the bundle has no engine for it or the engine has other weights.
    Raises MissingBackendError without pyACL, and AclError (exit code 3) if a call fails.
    """
    number = parse_device(device, "ascend").number
    engines = [ASCEND_ENGINES.read(folder) for folder in ASCEND_ENGINES.folders(bundle)]
    if not engines:
        raise BadInputError(
            f"{bundle.path} has no engine for Ascend",
            expected="a folder engines/ascend-* in the bundle",
            remedy=f"build one: {_BUILD.format(bundle.path)}",
        )
    acl = THE_PROCESS.calls()
    chosen = engines[0] if len(engines) == 1 else _engine_for_soc(engines, str(acl("rt.get_soc_name")), bundle)
    _check_engine(chosen, bundle)
    return ThreadedSession(device, partial(_open_on_thread, chosen, bundle, device, number))


def _open_on_thread(stored: StoredAscendEngine, bundle: Bundle, device: str, number: int) -> DeviceSession:
    """Open the session on the thread that will use it."""
    with ExitStack() as stack:
        memory = AclMemory(THE_PROCESS, number)
        stack.callback(memory.close)
        engine = AscendForward(THE_PROCESS.calls(), memory, stored, _rotary(stored, bundle))
        stack.callback(engine.close)
        session = DeviceSession(engine, device, _cache_shape(stored, bundle), bundle.manifest.dimensions.vocab_size)
        stack.pop_all()
    return session


def _rotary(stored: StoredAscendEngine, bundle: Bundle) -> RotaryAngles | None:
    """Return the angles that the engine takes, or None for an engine that takes positions."""
    sizes = bundle.manifest.dimensions
    takes_angles = any(each.name == ROTARY_COS for each in stored.engine.inputs)
    return RotaryAngles(sizes.rotary_size, sizes.rope_theta) if takes_angles else None


def _engine_for_soc(engines: list[StoredAscendEngine], soc: str, bundle: Bundle) -> StoredAscendEngine:
    for each in engines:
        if each.engine.soc_version == soc:
            return each
    raise BadInputError(
        f"{bundle.path} has engines for {', '.join(each.engine.soc_version for each in engines)}, but this is {soc}",
        expected=f"an engine for {soc}",
        remedy=f"build one: {_BUILD.format(bundle.path).replace('SOC', soc)}",
    )


def _cache_shape(stored: StoredAscendEngine, bundle: Bundle) -> CacheShape:
    sizes = bundle.manifest.dimensions
    dtype = {each.name: each.dtype for each in stored.engine.outputs}[window_names(1)[0]]
    return CacheShape(2 * sizes.layers, sizes.kv_heads, sizes.head_size, stored_dtype(dtype))


def _check_engine(stored: StoredAscendEngine, bundle: Bundle) -> None:
    """Raise BadInputError unless the engine belongs to this bundle and its arrays match the session."""
    remedy = f"build it again: {_BUILD.format(bundle.path).replace('SOC', stored.engine.soc_version)}"
    if not stored.fits(bundle):
        raise BadInputError(
            f"{stored.folder} was built from other weights than {bundle.path}",
            expected="an engine built from this bundle",
            remedy=remedy,
        )
    check_buckets_fit(
        [each.bucket for each in stored.engine.buckets], bundle.manifest, source=str(stored.folder), remedy=remedy
    )
    inputs = [each.name for each in stored.engine.inputs]
    names = portable_input_names(with_rotary=ROTARY_COS in inputs)
    if inputs != names:
        raise BadInputError(
            f"{stored.folder} has {len(inputs)} inputs, the last is {inputs[-1] if inputs else None}",
            expected=", ".join(names),
            remedy=f"export the checkpoint again, then {remedy}",
        )
    names = contract.output_names(bundle.manifest.dimensions.layers, with_logits=bundle.manifest.with_logits)
    dtypes = {each.name: each.dtype for each in stored.engine.outputs}
    wrong = [name for name, dtype in _STATISTICS.items() if dtypes.get(name) != dtype]
    if set(dtypes) != set(names) or wrong:
        raise BadInputError(
            f"{stored.folder} has the outputs {dtypes}",
            expected=f"{', '.join(names)}, with the types {_STATISTICS}",
            remedy=remedy,
        )
    # The bytes of a tile of such rows are a multiple of accelerator.device_memory.ALIGNMENT, so a cache's arrays have
    # no gaps.
    size = row_bytes(_cache_shape(stored, bundle))
    if size % COPY_ALIGNMENT:
        raise BadInputError(
            f"{bundle.path} has cache rows of {size} bytes",
            expected=f"a multiple of {COPY_ALIGNMENT}, as pyACL's copies require",
            remedy="use a model with larger heads, or another device",
        )
