"""TensorRT's quickly deployable plugins for the functions of domain `lopa`, with kernels compiled ahead of time.

A plugin that is registered before the parser runs replaces the function of its name. Functions without a plugin keep
their bodies. An engine contains the kernels and needs no Python at run time. A plugin has one kernel, so the confidence
head has two plugins: StatisticsPartials and StatisticsMerge. Importing this module needs neither TensorRT nor Triton.
"""

import inspect
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from types import GenericAlias
from typing import Any

from lopa.plugins.launch_sizes import MAX_SPLITS, SPLIT_COLUMNS, Floats, attention_tiles, head_tiles
from lopa.runtime.contract import TOP_K
from lopa.runtime.errors import MissingBackendError
from lopa.runtime.install_hint import pip_install

NAMESPACE = "lopa"
BRANCH_ATTENTION = "BranchAttention"
TOKEN_STATISTICS = "TokenStatistics"
PLUGINS = (BRANCH_ATTENTION, TOKEN_STATISTICS)
"""Names in the manifest's list of plugins."""

_SAME_FLOATS = "FP32|FP16|BF16"
"""Possible types of an input or output. All inputs and outputs with this constant get the same type."""
_PARTIALS = ("greatest", "total", "weighted", "logits", "numbers")
_PARTIAL_TYPES = ("FP32", "FP32", "FP32", "FP32", "INT32")


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
    kernel: Callable[[_Libraries, Descriptors, Descriptors], tuple[bytes, bytes, Any, Any]]
    """Function from descriptors to the kernel's name, its PTX, its launch, and numbers between inputs and outputs."""


def register_plugins(capability: tuple[int, int], names: Collection[str] = PLUGINS) -> None:
    """Register these plugins with TensorRT, once per process, for a GPU of this compute capability, e.g. (9, 0).

    Raises MissingBackendError if TensorRT or Triton is not installed.
    """
    libraries = _libraries(capability)
    for plugin in (plugin for name in names for plugin in _PLUGINS[name]):
        _register(plugin, libraries)


def _register(plugin: _Plugin, libraries: _Libraries) -> None:
    """Register a plugin. TensorRT reads parameter names and types from signatures, and passes arguments by position."""
    trtp = libraries.trtp
    identity, count = f"{NAMESPACE}::{plugin.name}", len(plugin.inputs)

    def describe(*given: Any) -> tuple[Any, ...]:
        return plugin.describe(libraries, given)

    def types(*_given: Any) -> list[Any]:
        return [trtp.AutoTuneCombination(", ".join(plugin.types), "LINEAR")]

    def kernel(*given: Any) -> tuple[bytes, bytes, Any, Any]:
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


def _attended(_libraries: _Libraries, inputs: Descriptors) -> tuple[Any, ...]:
    return (inputs[0].like(),)


def _attention_kernel(
    libraries: _Libraries, inputs: Descriptors, _outputs: Descriptors
) -> tuple[bytes, bytes, Any, Any]:
    from lopa.plugins.kernels.compiled_operators import compiled_branch_attention

    query, _, _, past_key, _, window_mask, prefix_mask = inputs
    floats = _floats(libraries, query)
    heads, kv_heads, size = query.shape[1], past_key.shape[1], query.shape[3]
    compiled = compiled_branch_attention(floats, heads, kv_heads, size, libraries.capability)
    _, branches, width, _ = window_mask.shape_expr
    requests, prefix = prefix_mask.shape_expr
    tiles = libraries.trtp.cdiv(branches * width * (heads // kv_heads), attention_tiles(floats).rows)
    return _launch(libraries, compiled, (tiles, kv_heads, requests), [branches, width, prefix])


def _partials(libraries: _Libraries, inputs: Descriptors) -> tuple[Any, ...]:
    trt, trtp = libraries.trt, libraries.trtp
    hidden, weight, _ = inputs
    requests, branches, queries, _ = hidden.shape_expr
    splits = trtp.min(trtp.cdiv(weight.shape_expr[1], SPLIT_COLUMNS), MAX_SPLITS)
    sums = [trtp.from_shape_expr((requests, branches, queries, splits), dtype=trt.float32) for _ in range(3)]
    candidates = (requests, branches, queries, splits, TOP_K)
    types = (trt.float32, trt.int32)
    return (*sums, *(trtp.from_shape_expr(candidates, dtype=dtype) for dtype in types))


def _partials_kernel(libraries: _Libraries, inputs: Descriptors, outputs: Descriptors) -> tuple[bytes, bytes, Any, Any]:
    from lopa.plugins.kernels.compiled_operators import compiled_statistics_partials

    hidden, weight, _ = inputs
    floats, splits = _floats(libraries, hidden), outputs[0].shape[3]
    compiled = compiled_statistics_partials(floats, weight.shape[0], weight.shape[1], splits, libraries.capability)
    requests, branches, queries, _ = hidden.shape_expr
    rows = requests * branches * queries
    tiles = libraries.trtp.cdiv(rows, head_tiles(floats).rows)
    return _launch(libraries, compiled, (tiles, splits, 1), [rows, branches * queries])


def _statistics(libraries: _Libraries, inputs: Descriptors) -> tuple[Any, ...]:
    trt, trtp = libraries.trt, libraries.trtp
    requests, branches, queries, _ = inputs[0].shape_expr
    candidates = (requests, branches, queries, TOP_K)
    return (
        trtp.from_shape_expr(candidates, dtype=trt.int32),
        trtp.from_shape_expr(candidates, dtype=trt.float32),
        trtp.from_shape_expr((requests, branches, queries), dtype=trt.float32),
    )


def _merge_kernel(libraries: _Libraries, inputs: Descriptors, _outputs: Descriptors) -> tuple[bytes, bytes, Any, Any]:
    from lopa.plugins.kernels.compiled_operators import compiled_statistics_merge

    compiled = compiled_statistics_merge(inputs[0].shape[3], libraries.capability)
    requests, branches, queries, _ = inputs[0].shape_expr
    return _launch(libraries, compiled, (requests * branches * queries, 1, 1), [])


# lopa.export.graph.plugin_functions defines the same shapes.
_PLUGINS = {
    BRANCH_ATTENTION: (
        _Plugin(
            BRANCH_ATTENTION,
            ("query", "key", "value", "past_key", "past_value", "window_mask", "prefix_mask"),
            1,
            (*[_SAME_FLOATS] * 5, "BOOL", "BOOL", _SAME_FLOATS),
            _attended,
            _attention_kernel,
        ),
    ),
    TOKEN_STATISTICS: (
        _Plugin(
            "StatisticsPartials",
            ("hidden", "weight", "temperature"),
            5,
            (_SAME_FLOATS, _SAME_FLOATS, "FP32", *_PARTIAL_TYPES),
            _partials,
            _partials_kernel,
        ),
        _Plugin(
            "StatisticsMerge", _PARTIALS, 3, (*_PARTIAL_TYPES, "INT32", "FP32", "FP32"), _statistics, _merge_kernel
        ),
    ),
}


def _launch(
    libraries: _Libraries, compiled: Any, grid: tuple[Any, Any, Any], numbers: list[Any]
) -> tuple[bytes, bytes, Any, Any]:
    launch = libraries.trtp.KernelLaunchParams()
    launch.grid_x, launch.grid_y, launch.grid_z = grid
    launch.block_x, launch.shared_mem = compiled.threads, compiled.shared_bytes
    arguments = libraries.trtp.SymIntExprs(len(numbers))
    for place, number in enumerate(numbers):
        arguments[place] = libraries.trtp.SymInt32(number)
    return compiled.name.encode(), compiled.ptx.encode(), launch, arguments


def _floats(libraries: _Libraries, tensor: Any) -> Floats:
    trt = libraries.trt
    names: dict[Any, Floats] = {trt.float32: "fp32", trt.float16: "fp16", trt.bfloat16: "bf16"}
    return names[tensor.dtype]


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
