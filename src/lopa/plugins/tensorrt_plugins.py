"""TensorRT's quickly deployable plugins for the functions of domain `lopa`, with kernels compiled ahead of time.

A plugin that is registered before the parser runs replaces the function of its name. Functions without a plugin keep
their bodies. An engine contains the kernels and needs no Python at run time. A plugin has one kernel, so the token
statistics have two plugins: LogitsPartials and LogitsMerge. Importing this module needs neither TensorRT nor
Triton.
"""

import inspect
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from types import GenericAlias
from typing import Any

from lopa.runtime.contract import TOP_K
from lopa.runtime.errors import MissingBackendError
from lopa.runtime.install_hint import pip_install

NAMESPACE = "lopa"
_SPLITS = 32
"""Splits of the vocabulary."""

_FLOATS = "FP32|FP16|BF16"
"""Possible types of logits."""
_PARTIALS = ("greatest", "total", "weighted", "ids", "values")
_PARTIAL_TYPES = ("FP32", "FP32", "FP32", "INT32", "FP32")


@dataclass(frozen=True)
class _Libraries:
    """Modules that are imported only when plugins are registered."""

    trt: Any
    """Module tensorrt."""
    trtp: Any
    """Module tensorrt.plugin."""
    capability: tuple[int, int]
    """Compute capability of the GPU that engines are built for."""


Descriptors = Sequence[Any]
"""tensorrt.plugin.TensorDesc for every input or output."""
_Kernel = tuple[bytes, bytes, Any, Any]
"""Name of a kernel, its PTX, its launch, and the numbers between inputs and outputs."""


@dataclass(frozen=True)
class _Plugin:
    """One plugin of namespace NAMESPACE, without attributes."""

    name: str
    inputs: tuple[str, ...]
    outputs: int
    types: tuple[str, ...]
    """Types of inputs, then outputs, in the form of AutoTuneCombination. All have a linear layout."""
    describe: Callable[[_Libraries, Descriptors], tuple[Any, ...]]
    """Function from input to output descriptors."""
    kernel: Callable[[_Libraries, Descriptors, Descriptors], _Kernel]
    """Function from input and output descriptors."""


def register_plugins(capability: tuple[int, int]) -> None:
    """Register the plugins with TensorRT, once per process, for a GPU of this compute capability, e.g. (9, 0).

    Raises MissingBackendError if TensorRT or Triton is not installed.
    """
    libraries = _libraries(capability)
    for plugin in _PLUGINS:
        _register(plugin, libraries)


def _register(plugin: _Plugin, libraries: _Libraries) -> None:
    """Register a plugin. TensorRT reads parameter names and types from signatures, and passes arguments by position."""
    trtp = libraries.trtp
    identity, count = f"{NAMESPACE}::{plugin.name}", len(plugin.inputs)

    def describe(*given: Any) -> tuple[Any, ...]:
        return plugin.describe(libraries, given)

    def types(*_given: Any) -> list[Any]:
        return [trtp.AutoTuneCombination(", ".join(plugin.types), "LINEAR")]

    def kernel(*given: Any) -> _Kernel:
        return plugin.kernel(libraries, given[:count], given[count])

    described: Any = trtp.TensorDesc
    inputs = dict.fromkeys(plugin.inputs, described)
    outputs = GenericAlias(tuple, (described,) * plugin.outputs)
    launch = GenericAlias(tuple, (bytes, bytes, trtp.KernelLaunchParams, trtp.SymIntExprs))
    trtp.register(identity)(_with_signature(describe, inputs, outputs))
    combinations = GenericAlias(list, (trtp.AutoTuneCombination,))
    trtp.autotune(identity)(_with_signature(types, inputs | {"outputs": outputs}, combinations))
    trtp.aot_impl(identity)(_with_signature(kernel, inputs | {"outputs": outputs, "tactic": int}, launch))


def _with_signature(function: Any, parameters: dict[str, Any], returned: Any) -> Any:
    kind = inspect.Parameter.POSITIONAL_OR_KEYWORD
    listed = [inspect.Parameter(name, kind, annotation=annotation) for name, annotation in parameters.items()]
    function.__signature__ = inspect.Signature(listed, return_annotation=returned)
    return function


def _partials(libraries: _Libraries, inputs: Descriptors) -> tuple[Any, ...]:
    trt, trtp = libraries.trt, libraries.trtp
    requests, branches, queries, _ = inputs[0].shape_expr
    rows = (requests, branches, queries, _SPLITS)
    sums = [trtp.from_shape_expr(rows, dtype=trt.float32) for _ in range(3)]
    return (*sums, *(trtp.from_shape_expr((*rows, TOP_K), dtype=dtype) for dtype in (trt.int32, trt.float32)))


def _partials_kernel(libraries: _Libraries, inputs: Descriptors, _outputs: Descriptors) -> _Kernel:
    logits = inputs[0]
    trt = libraries.trt
    floats = {trt.float32: "fp32", trt.float16: "fp16", trt.bfloat16: "bf16"}[logits.dtype]
    requests, branches, queries, _ = logits.shape_expr
    rows, vocabulary = branches * queries, logits.shape[3]
    columns = -(-vocabulary // (16 * _SPLITS)) * 16  # loads are wide with multiples of 16
    name = f"statistics_partials.{floats}.{TOP_K}"
    return _launch(libraries, name, (requests * rows, _SPLITS, 1), [rows, vocabulary, columns])


def _statistics(libraries: _Libraries, inputs: Descriptors) -> tuple[Any, ...]:
    trt, trtp = libraries.trt, libraries.trtp
    rows = inputs[0].shape_expr[:3]
    return (
        trtp.from_shape_expr((*rows, TOP_K), dtype=trt.int64),
        trtp.from_shape_expr((*rows, TOP_K), dtype=trt.float32),
        trtp.from_shape_expr(tuple(rows), dtype=trt.float32),
    )


def _merge_kernel(libraries: _Libraries, inputs: Descriptors, _outputs: Descriptors) -> _Kernel:
    requests, branches, queries, _ = inputs[0].shape_expr
    return _launch(libraries, f"statistics_merge.{TOP_K}", (requests * branches * queries, 1, 1), [_SPLITS])


# lopa.export.graph.plugin_functions defines the same shapes.
_PLUGINS = (
    _Plugin(
        "LogitsPartials",
        ("logits", "temperature"),
        5,
        (_FLOATS, "FP32", *_PARTIAL_TYPES),
        _partials,
        _partials_kernel,
    ),
    _Plugin("LogitsMerge", _PARTIALS, 3, (*_PARTIAL_TYPES, "INT64", "FP32", "FP32"), _statistics, _merge_kernel),
)


def _launch(libraries: _Libraries, variant: str, grid: tuple[Any, Any, Any], numbers: list[Any]) -> _Kernel:
    """Compile a variant, and return it with its launch. TensorRT passes inputs, numbers and outputs only."""
    from lopa.plugins.kernels.ahead_of_time import compiled_variant, ptx_without_scratch
    from lopa.plugins.kernels.variants import variants

    major, minor = libraries.capability
    target = 10 * major + minor
    compiled = compiled_variant(variants(target)[variant], target)
    launch = libraries.trtp.KernelLaunchParams()
    launch.grid_x, launch.grid_y, launch.grid_z = grid
    launch.block_x, launch.shared_mem = compiled.threads, compiled.shared
    arguments = libraries.trtp.SymIntExprs(len(numbers))
    for place, number in enumerate(numbers):
        arguments[place] = libraries.trtp.SymInt32(number)
    return compiled.entry.encode(), ptx_without_scratch(compiled.ptx).encode(), launch, arguments


def _libraries(capability: tuple[int, int]) -> _Libraries:
    try:
        import tensorrt as trt
        import tensorrt.plugin as trtp
        import triton  # noqa: F401  (compiles the kernels when an engine is built)
    except ModuleNotFoundError as error:
        raise MissingBackendError(
            f"{error.name} is not installed",
            expected="TensorRT, Triton and torch for plugins",
            remedy=f"{pip_install('tensorrt', 'plugins')}, or build the engine without plugins",
        ) from error
    return _Libraries(trt, trtp, capability)
