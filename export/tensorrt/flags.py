"""How a build is configured, in the names of TensorRT's BuilderFlag. The same for 10.15 and 11: networks are strongly
typed, so that none of the precision flags that 11 removed is ever set. Knows no network.
"""

from types import ModuleType
from typing import Any

from lopa.runtime.tensorrt.manifest import BuildFlags

_FLAGS = {
    "weight_streaming": ("WEIGHT_STREAMING",),
    # The weights that are put in later are those of the build, which is what REFIT_IDENTICAL says. REFIT alone lets
    # 11.3 drop the bias of a product (its release notes).
    "strip_weights": ("STRIP_PLAN", "REFIT_IDENTICAL"),
    "version_compatible": ("VERSION_COMPATIBLE",),
}
"""Field of BuildFlags -> flags that are set for it."""


def names_of_flags(flags: BuildFlags) -> list[str]:
    """Members of BuilderFlag to set."""
    return [name for field, names in _FLAGS.items() if getattr(flags, field) for name in names]


def configure(trt: ModuleType, config: Any, flags: BuildFlags) -> None:
    """Set up an IBuilderConfig of the module `trt`, but for profiles, timing cache and progress."""
    for name in names_of_flags(flags):
        config.set_flag(getattr(trt.BuilderFlag, name))
    # On by default, and then products of float32 keep 10 bits of each number: a bundle in float32 means float32.
    config.clear_flag(trt.BuilderFlag.TF32)
    if flags.workspace is not None:
        config.set_memory_pool_limit(trt.MemoryPoolType.WORKSPACE, flags.workspace)
    config.profiling_verbosity = trt.ProfilingVerbosity.DETAILED  # for the layer report
