"""The contract on an Ascend NPU: OMs that lopa-export ascend compiled, run by pyACL, caches in the device's memory.

Knows which engine of a bundle is for the device. pyACL comes with CANN and is imported when a session is opened.
"""

from contextlib import ExitStack
from functools import partial

from lopa.runtime import contract
from lopa.runtime.accelerator.cache import row_bytes
from lopa.runtime.accelerator.session import DeviceSession
from lopa.runtime.ascend.forward import AscendForward
from lopa.runtime.ascend.manifest import ASCEND_ENGINES, StoredAscendEngine
from lopa.runtime.ascend.memory import COPY_ALIGNMENT, AclMemory
from lopa.runtime.ascend.process import THE_PROCESS
from lopa.runtime.bundle import Bundle
from lopa.runtime.bundle.buckets import check_buckets_fit
from lopa.runtime.contract import window_names
from lopa.runtime.contract.portable_form import portable_input_names
from lopa.runtime.contract.stored_floats import stored_dtype
from lopa.runtime.device_families import parse_device
from lopa.runtime.errors import BadInputError
from lopa.runtime.sessions.prefix_cache import CacheShape
from lopa.runtime.sessions.threaded_session import ThreadedSession

_BUILD = "lopa-export ascend {} --soc-version SOC"
_STATISTICS = {contract.TOPK_IDS: "int64", contract.TOPK_LOGPROBS: "float32", contract.ENTROPY: "float32"}


def open_session(bundle: Bundle, device: str, *, threads: int | None) -> ThreadedSession:  # noqa: ARG001
    """Open the bundle's engine on "ascend:N"; `threads` is for processors.

    Raises BadInputError for another device, and when the bundle has no engine for it or one of other weights;
    MissingBackendError without pyACL; AclError (exit code 3) when a call of it fails.
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
    return ThreadedSession(device, partial(_opened, chosen, bundle, device, number))


def _opened(found: StoredAscendEngine, bundle: Bundle, device: str, number: int) -> DeviceSession:
    """On the thread that will use it."""
    with ExitStack() as opened:
        memory = AclMemory(THE_PROCESS, number)
        opened.callback(memory.close)
        engine = AscendForward(THE_PROCESS.calls(), memory, found)
        opened.callback(engine.close)
        session = DeviceSession(engine, device, _cache_shape(found, bundle), bundle.manifest.dimensions.vocab_size)
        opened.pop_all()
    return session


def _engine_for_soc(engines: list[StoredAscendEngine], soc: str, bundle: Bundle) -> StoredAscendEngine:
    for each in engines:
        if each.engine.soc_version == soc:
            return each
    raise BadInputError(
        f"{bundle.path} has engines for {', '.join(each.engine.soc_version for each in engines)}, this is {soc}",
        expected=f"an engine for {soc}",
        remedy=f"build one: {_BUILD.format(bundle.path).replace('SOC', soc)}",
    )


def _cache_shape(found: StoredAscendEngine, bundle: Bundle) -> CacheShape:
    sizes = bundle.manifest.dimensions
    dtype = {each.name: each.dtype for each in found.engine.outputs}[window_names(1)[0]]
    return CacheShape(2 * sizes.layers, sizes.kv_heads, sizes.head_size, stored_dtype(dtype))


def _check_engine(found: StoredAscendEngine, bundle: Bundle) -> None:
    """Raise BadInputError unless the engine is of this bundle and its arrays are as the session takes them."""
    remedy = f"build it again: {_BUILD.format(bundle.path).replace('SOC', found.engine.soc_version)}"
    if not found.fits(bundle):
        raise BadInputError(
            f"{found.folder} was made of other weights than those of {bundle.path}",
            expected="an engine of this bundle",
            remedy=remedy,
        )
    check_buckets_fit(
        [each.bucket for each in found.engine.buckets], bundle.manifest, source=str(found.folder), remedy=remedy
    )
    inputs = [each.name for each in found.engine.inputs]
    if inputs != portable_input_names():
        raise BadInputError(
            f"{found.folder} has {len(inputs)} inputs, the last {inputs[-1] if inputs else None}",
            expected=", ".join(portable_input_names()),
            remedy=f"export the checkpoint again, then {remedy}",
        )
    names = contract.output_names(bundle.manifest.dimensions.layers, with_logits=bundle.manifest.with_logits)
    dtypes = {each.name: each.dtype for each in found.engine.outputs}
    wrong = [name for name, dtype in _STATISTICS.items() if dtypes.get(name) != dtype]
    if set(dtypes) != set(names) or wrong:
        raise BadInputError(
            f"{found.folder} has the outputs {dtypes}",
            expected=f"{', '.join(names)}, of them {_STATISTICS}",
            remedy=remedy,
        )
    # A tile of such rows is a multiple of accelerator.memory.ALIGNMENT, so that a cache's arrays are one without holes.
    size = row_bytes(_cache_shape(found, bundle))
    if size % COPY_ALIGNMENT:
        raise BadInputError(
            f"{bundle.path} has cache rows of {size} bytes",
            expected=f"a multiple of {COPY_ALIGNMENT}: pyACL copies nothing else between rows",
            remedy="use a model whose heads are larger, or another device",
        )
