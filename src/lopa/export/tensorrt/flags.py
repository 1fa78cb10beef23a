"""Configuration of a build in terms of TensorRT's BuilderFlag, for TensorRT 10.15, 11 and TensorRT for RTX.

Networks are strongly typed, so none of the precision flags that TensorRT 11 removed is set.
"""

from collections.abc import Sequence
from types import ModuleType
from typing import Any

from lopa.runtime.cuda.driver import without_fp8
from lopa.runtime.errors import BadInputError
from lopa.runtime.tensorrt.tensorrt_library import RTX
from lopa.runtime.tensorrt.tensorrt_manifest import BuildFlags, EngineTarget, can_be_captured

_FLAGS = {
    "weight_streaming": ("WEIGHT_STREAMING",),
    # REFIT_IDENTICAL declares that weights added later are identical to the weights of the build. With REFIT alone,
    # 11.3 may drop the bias of a product (its release notes).
    "strip_weights": ("STRIP_PLAN", "REFIT_IDENTICAL"),
    "version_compatible": ("VERSION_COMPATIBLE",),
}
"""Flags to set by field of BuildFlags."""


def names_of_flags(flags: BuildFlags, target: EngineTarget) -> list[str]:
    """Return the members of BuilderFlag to set."""
    names = [name for field, names in _FLAGS.items() if getattr(flags, field) for name in names]
    # Without this flag an engine of TensorRT for RTX may allocate at run time and cannot be captured in a CUDA graph
    # (release notes, 1.2).
    if target.library == RTX.name and can_be_captured(target, flags):
        names.append("REQUIRE_USER_ALLOCATION")
    return names


def check_has_products(flags: BuildFlags, capabilities: Sequence[str], gpu: str | None = None) -> None:
    """Raise BadInputError if a product is missing on GPUs of the compute `capabilities` or on the GPU named `gpu`."""
    if flags.products == "fp8" and (missing := without_fp8(capabilities)):
        named = "" if gpu is None else f"{gpu}, of "
        raise BadInputError(
            f"FP8 products for {named}compute capability {', '.join(missing)}",
            expected="compute capability 8.9 or later",
            remedy="use --int8 in place of --fp8, or a bundle without FP8 matrices",
        )


def capability_members(rtx: ModuleType) -> dict[str, Any]:
    """Return members of ComputeCapability of the module `rtx` by capability: SM86 is 8.6, SM120 is 12.0."""
    members = rtx.ComputeCapability.__members__
    return {f"{name[2:-1]}.{name[-1]}": member for name, member in members.items() if name.startswith("SM")}


def configure(trt: ModuleType, config: Any, flags: BuildFlags, target: EngineTarget) -> None:
    """Configure an IBuilderConfig of the module `trt`, except profiles, timing cache and progress."""
    for name in names_of_flags(flags, target):
        config.set_flag(getattr(trt.BuilderFlag, name))
    if target.library == RTX.name and target.capabilities:
        config.num_compute_capabilities = len(target.capabilities)
        for number, capability in enumerate(target.capabilities):
            config.set_compute_capability(capability_members(trt)[capability], number)
    # TF32 is on by default. It keeps only 10 bits of float32 mantissas, but users expect float32 results from a float32
    # bundle.
    config.clear_flag(trt.BuilderFlag.TF32)
    if flags.workspace is not None:
        config.set_memory_pool_limit(trt.MemoryPoolType.WORKSPACE, flags.workspace)
    config.profiling_verbosity = trt.ProfilingVerbosity.DETAILED  # for the layer report
