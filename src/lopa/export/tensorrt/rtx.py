"""What is asked of TensorRT for RTX: the GPUs that an engine is for, and what of TensorRT it does not have."""

import re
from collections.abc import Sequence
from types import ModuleType

from lopa.export.tensorrt.flags import capability_members, check_has_products
from lopa.runtime.errors import BadInputError
from lopa.runtime.tensorrt.library import RTX
from lopa.runtime.tensorrt.manifest import BuildFlags, EngineTarget

_LACKS = {
    "version_compatible": (
        "--version-compatible with --rtx",
        "no such option: the runtime that it puts into a plan (libnvinfer_lean) does not come with TensorRT for RTX",
        "leave it out, and build again for another version, which needs no GPU",
    ),
    "plugins": (
        "--plugins with --rtx",
        "no such option: our kernels are compiled for one GPU, an engine by TensorRT for RTX is for many",
        "leave it out: the bundle's functions are built by their bodies",
    ),
}
"""Field of BuildFlags -> what was received, expected, and is to be done."""


def check_rtx_takes(flags: BuildFlags, *, timing_cache: bool) -> None:
    """Raise BadInputError for what TensorRT for RTX does not have; `timing_cache`: whether one was asked for."""
    for field, (received, expected, remedy) in _LACKS.items():
        if getattr(flags, field):
            raise BadInputError(received, expected=expected, remedy=remedy)
    if timing_cache:
        raise BadInputError(
            "--timing-cache with --rtx",
            expected="no such option: TensorRT for RTX times nothing when it builds (its timing cache does nothing, "
            "and asks for a GPU)",
            remedy="leave it out; kernels are kept beside the engine when it is opened",
        )


def target_of_rtx(rtx: ModuleType, capabilities: Sequence[str], flags: BuildFlags) -> EngineTarget:
    """An engine by the module `rtx` for the compute `capabilities`, e.g. "8.6" or "86"; without any for 8.0 and later.

    Raises BadInputError for one that the library does not know, and for one that has no products in fp8 when `flags`
    ask for them.
    """
    named = sorted({_capability(rtx, each) for each in capabilities}, key=lambda each: [*map(int, each.split("."))])
    check_has_products(flags, named)
    return EngineTarget(library="tensorrt-rtx", version=rtx.__version__, gpu=None, capabilities=named)


def _capability(rtx: ModuleType, text: str) -> str:
    """ "86", "8.6" and "sm86" -> "8.6"."""
    known = capability_members(rtx)
    found = re.fullmatch(r"(?:sm)?(\d+)\.?(\d)", text.strip().lower(), re.ASCII)
    capability = "" if found is None else f"{found[1]}.{found[2]}"
    if capability not in known:
        raise BadInputError(
            f"--compute-capability {text}",
            expected=f"one that {RTX.title} {rtx.__version__} builds for: {', '.join(known)}",
            remedy="choose one of these; without the option the engine is for 8.0 and later",
        )
    return capability
