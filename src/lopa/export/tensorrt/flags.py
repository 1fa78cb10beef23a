"""How a build is configured, in the names of TensorRT's BuilderFlag. The same for 10.15, 11 and TensorRT for RTX:
networks are strongly typed, so that none of the precision flags that 11 removed is ever set. Knows no network.
"""

from collections.abc import Sequence
from types import ModuleType
from typing import Any

from lopa.runtime.errors import BadInputError
from lopa.runtime.tensorrt.library import RTX
from lopa.runtime.tensorrt.manifest import BuildFlags, EngineTarget, can_be_captured, without_fp8

_FLAGS = {
    "weight_streaming": ("WEIGHT_STREAMING",),
    # The weights that are put in later are those of the build, which is what REFIT_IDENTICAL says. REFIT alone lets
    # 11.3 drop the bias of a product (its release notes).
    "strip_weights": ("STRIP_PLAN", "REFIT_IDENTICAL"),
    "version_compatible": ("VERSION_COMPATIBLE",),
}
"""Field of BuildFlags -> flags that are set for it."""


def names_of_flags(flags: BuildFlags, target: EngineTarget) -> list[str]:
    """Members of BuilderFlag to set."""
    names = [name for field, names in _FLAGS.items() if getattr(flags, field) for name in names]
    # Without it an engine by TensorRT for RTX may allocate while it runs, and cannot be captured (release notes, 1.2).
    if target.library == RTX.name and can_be_captured(target, flags):
        names.append("REQUIRE_USER_ALLOCATION")
    return names


def check_has_products(flags: BuildFlags, capabilities: Sequence[str], gpu: str | None = None) -> None:
    """Raise BadInputError where GPUs of one of the compute `capabilities`, or the one named `gpu`, lack a product."""
    if flags.products == "fp8" and (lacking := without_fp8(capabilities)):
        named = "" if gpu is None else f"{gpu}, of "
        raise BadInputError(
            f"--fp8 for {named}compute capability {', '.join(lacking)}",
            expected="compute capability 8.9 or later",
            remedy="use --int8, or leave it out",
        )


def capability_members(rtx: ModuleType) -> dict[str, Any]:
    """Members of ComputeCapability of the module `rtx` by what they name: SM86 is 8.6, SM120 is 12.0."""
    members = rtx.ComputeCapability.__members__
    return {f"{name[2:-1]}.{name[-1]}": member for name, member in members.items() if name.startswith("SM")}


def configure(trt: ModuleType, config: Any, flags: BuildFlags, target: EngineTarget) -> None:
    """Set up an IBuilderConfig of the module `trt`, but for profiles, timing cache and progress."""
    for name in names_of_flags(flags, target):
        config.set_flag(getattr(trt.BuilderFlag, name))
    if target.library == RTX.name and target.capabilities:
        config.num_compute_capabilities = len(target.capabilities)
        for number, capability in enumerate(target.capabilities):
            config.set_compute_capability(capability_members(trt)[capability], number)
    # On by default, and then products of float32 keep 10 bits of each number: a bundle in float32 means float32.
    config.clear_flag(trt.BuilderFlag.TF32)
    if flags.workspace is not None:
        config.set_memory_pool_limit(trt.MemoryPoolType.WORKSPACE, flags.workspace)
    config.profiling_verbosity = trt.ProfilingVerbosity.DETAILED  # for the layer report
