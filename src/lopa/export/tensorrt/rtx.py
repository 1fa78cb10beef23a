"""Target and limits of TensorRT for RTX: the GPUs that an engine is for, and unsupported features of TensorRT."""

import re
from collections.abc import Sequence
from types import ModuleType

from lopa.export.tensorrt.flags import capability_members, check_has_products
from lopa.runtime.errors import BadInputError
from lopa.runtime.tensorrt.tensorrt_library import RTX
from lopa.runtime.tensorrt.tensorrt_manifest import BuildFlags, EngineTarget

_UNSUPPORTED = {
    "version_compatible": (
        "--version-compatible with --rtx",
        "no such option: TensorRT for RTX lacks the runtime that it embeds into a plan (libnvinfer_lean)",
        "drop it; a build for another version needs no GPU",
    ),
    "plugins": (
        "--plugins with --rtx",
        "no such option: our kernels are compiled for one GPU, an engine by TensorRT for RTX is for many",
        "drop it: the engine then uses the bodies of the bundle's functions",
    ),
}
"""Texts of the error (received, expected and remedy) by field of BuildFlags."""


def check_rtx_takes(flags: BuildFlags, *, timing_cache: bool) -> None:
    """Raise BadInputError for options that TensorRT for RTX does not support, including a timing cache."""
    for field, (received, expected, remedy) in _UNSUPPORTED.items():
        if getattr(flags, field):
            raise BadInputError(received, expected=expected, remedy=remedy)
    if timing_cache:
        raise BadInputError(
            "--timing-cache with --rtx",
            expected="a build without it: TensorRT for RTX does not time kernels in a build (its timing cache has no "
            "effect and needs a GPU)",
            remedy="drop it; opening the engine stores kernels in its folder",
        )


def target_of_rtx(rtx: ModuleType, capabilities: Sequence[str], flags: BuildFlags) -> EngineTarget:
    """Return the target for the module `rtx` and compute `capabilities`, e.g. "8.6" or "86"; by default 8.0 and later.

    Raises BadInputError for a capability that the library does not know, and for one without fp8 products if `flags`
    require them.
    """
    named = sorted({_capability(rtx, each) for each in capabilities}, key=lambda each: [*map(int, each.split("."))])
    check_has_products(flags, named)
    return EngineTarget(library="tensorrt-rtx", version=rtx.__version__, gpu=None, capabilities=named)


def _capability(rtx: ModuleType, text: str) -> str:
    """Return 8.6 for "86", "8.6" and "sm86". Raises BadInputError for an unknown capability."""
    known = capability_members(rtx)
    found = re.fullmatch(r"(?:sm)?(\d+)\.?(\d)", text.strip().lower(), re.ASCII)
    capability = "" if found is None else f"{found[1]}.{found[2]}"
    if capability not in known:
        raise BadInputError(
            f"--compute-capability {text}",
            expected=f"one that {RTX.title} {rtx.__version__} builds for: {', '.join(known)}",
            remedy="use one of these; without the option the engine is for 8.0 and later",
        )
    return capability
