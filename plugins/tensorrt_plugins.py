"""The functions of domain `lopa` as TensorRT's quickly deployable plugins, with kernels compiled ahead of time.

Registered before a graph made with --plugins is parsed, a plugin is taken in place of the function of its name; what is
not registered stays the function's body. An engine holds the kernels and needs no Python when it runs. A plugin is one
kernel, so the confidence head is two: ConfidencePartials and ConfidenceMerge. Knows TensorRT's plugin interface; the
kernels are lopa.plugins.kernels.compiled_operators. Importing this needs neither TensorRT nor Triton.
"""

from collections.abc import Collection
from typing import Any

from lopa.plugins.launch_sizes import MOST_SPLITS, SPLIT_COLUMNS, Floats, attention_tiles, head_tiles
from lopa.runtime.contract import TOP_K
from lopa.runtime.errors import MissingBackendError

NAMESPACE = "lopa"
BRANCH_ATTENTION = "BranchAttention"
CONFIDENCE_HEAD = "ConfidenceHead"
PLUGINS = (BRANCH_ATTENTION, CONFIDENCE_HEAD)
"""As in the manifest's list of plugins."""

_SAME_FLOATS = "FP32|FP16|BF16"
"""One of these, the same at every place that says so."""


def register_plugins(capability: tuple[int, int], names: Collection[str] = PLUGINS) -> None:
    """Register these plugins with TensorRT, once in a process, for a GPU of this compute capability, e.g. (9, 0).

    Raises MissingBackendError when TensorRT or Triton is not installed.
    """
    trt, trtp = _tensorrt()
    registrations = {BRANCH_ATTENTION: (_branch_attention,), CONFIDENCE_HEAD: (_partials, _merge)}
    for name in names:
        for registration in registrations[name]:
            registration(trt, trtp, capability)


def _branch_attention(trt: Any, trtp: Any, capability: tuple[int, int]) -> None:
    """query [R * B, Hq, W, D], key and value [R * B, Hkv, W, D], past_key and past_value [R, Hkv, P, D], window_mask
    bool [R, B, W, W], prefix_mask bool [R, P] -> as query.
    """
    plugin = f"{NAMESPACE}::{BRANCH_ATTENTION}"
    described, returned = trtp.TensorDesc, _returned(trtp)

    @trtp.register(plugin)
    def describe(
        query: described,
        key: described,
        value: described,
        past_key: described,
        past_value: described,
        window_mask: described,
        prefix_mask: described,
    ) -> described:
        return query.like()

    @trtp.autotune(plugin)
    def types(query, key, value, past_key, past_value, window_mask, prefix_mask, outputs):  # type: ignore[no-untyped-def]
        return [_combination(trtp, [*[_SAME_FLOATS] * 5, "BOOL", "BOOL", _SAME_FLOATS])]

    @trtp.aot_impl(plugin)
    def kernel(query, key, value, past_key, past_value, window_mask, prefix_mask, outputs, tactic) -> returned:  # type: ignore[no-untyped-def]
        from lopa.plugins.kernels.compiled_operators import compiled_branch_attention

        floats = _floats(trt, query.dtype)
        heads, kv_heads, size = query.shape[1], past_key.shape[1], query.shape[3]
        compiled = compiled_branch_attention(floats, heads, kv_heads, size, capability)
        branches, width = window_mask.shape_expr[1], window_mask.shape_expr[2]
        rows = branches * width * (heads // kv_heads)
        grid = (trtp.cdiv(rows, attention_tiles(floats).rows), kv_heads, prefix_mask.shape_expr[0])
        return _launch(trtp, compiled, grid, [branches, width, prefix_mask.shape_expr[1]])


def _partials(trt: Any, trtp: Any, capability: tuple[int, int]) -> None:
    """hidden [R, B, Q, H], weight [H, V], temperature float32 [R] -> three of float32 [R, B, Q, S], float32 and int32
    [R, B, Q, S, K].
    """
    plugin = f"{NAMESPACE}::ConfidencePartials"
    described, returned = trtp.TensorDesc, _returned(trtp)

    @trtp.register(plugin)
    def describe(
        hidden: described, weight: described, temperature: described
    ) -> tuple[described, described, described, described, described]:
        splits = trtp.min(trtp.cdiv(weight.shape_expr[1], SPLIT_COLUMNS), MOST_SPLITS)
        rows = [hidden.shape_expr[axis] for axis in range(3)]
        sums = [trtp.from_shape_expr((*rows, splits), dtype=trt.float32) for _ in range(3)]
        of_candidates = (*rows, splits, TOP_K)
        logits = trtp.from_shape_expr(of_candidates, dtype=trt.float32)
        return (*sums, logits, trtp.from_shape_expr(of_candidates, dtype=trt.int32))

    @trtp.autotune(plugin)
    def types(hidden, weight, temperature, outputs):  # type: ignore[no-untyped-def]
        return [_combination(trtp, [_SAME_FLOATS, _SAME_FLOATS, "FP32", *["FP32"] * 4, "INT32"])]

    @trtp.aot_impl(plugin)
    def kernel(hidden, weight, temperature, outputs, tactic) -> returned:  # type: ignore[no-untyped-def]
        from lopa.plugins.kernels.compiled_operators import compiled_confidence_partials

        floats, (size, vocabulary), splits = _floats(trt, hidden.dtype), weight.shape, outputs[0].shape[3]
        compiled = compiled_confidence_partials(floats, size, vocabulary, splits, capability)
        requests, branches, queries = (hidden.shape_expr[axis] for axis in range(3))
        rows = requests * branches * queries
        grid = (trtp.cdiv(rows, head_tiles(floats).rows), splits, 1)
        return _launch(trtp, compiled, grid, [rows, branches * queries])


def _merge(trt: Any, trtp: Any, capability: tuple[int, int]) -> None:
    """What ConfidencePartials gives -> int32 and float32 [R, B, Q, K], float32 [R, B, Q]."""
    plugin = f"{NAMESPACE}::ConfidenceMerge"
    described, returned = trtp.TensorDesc, _returned(trtp)

    @trtp.register(plugin)
    def describe(
        greatest: described, total: described, weighted: described, logits: described, numbers: described
    ) -> tuple[described, described, described]:
        rows = [greatest.shape_expr[axis] for axis in range(3)]
        return (
            trtp.from_shape_expr((*rows, TOP_K), dtype=trt.int32),
            trtp.from_shape_expr((*rows, TOP_K), dtype=trt.float32),
            trtp.from_shape_expr(tuple(rows), dtype=trt.float32),
        )

    @trtp.autotune(plugin)
    def types(greatest, total, weighted, logits, numbers, outputs):  # type: ignore[no-untyped-def]
        return [_combination(trtp, [*["FP32"] * 4, "INT32", "INT32", "FP32", "FP32"])]

    @trtp.aot_impl(plugin)
    def kernel(greatest, total, weighted, logits, numbers, outputs, tactic) -> returned:  # type: ignore[no-untyped-def]
        from lopa.plugins.kernels.compiled_operators import compiled_confidence_merge

        compiled = compiled_confidence_merge(greatest.shape[3], capability)
        requests, branches, queries = (greatest.shape_expr[axis] for axis in range(3))
        return _launch(trtp, compiled, (requests * branches * queries, 1, 1), [])


def _launch(trtp: Any, compiled: Any, grid: tuple[Any, Any, Any], numbers: list[Any]) -> tuple[Any, ...]:
    """What an aot_impl returns; `numbers` are the arguments between the inputs and the outputs."""
    launch = trtp.KernelLaunchParams()
    launch.grid_x, launch.grid_y, launch.grid_z = grid
    launch.block_x, launch.shared_mem = compiled.threads, compiled.shared_bytes
    arguments = trtp.SymIntExprs(len(numbers))
    for place, number in enumerate(numbers):
        arguments[place] = trtp.SymInt32(number)
    return compiled.name.encode(), compiled.ptx.encode(), launch, arguments


def _returned(trtp: Any) -> Any:
    """The annotation that aot_impl asks for."""
    return tuple[bytes, bytes, trtp.KernelLaunchParams, trtp.SymIntExprs]


def _combination(trtp: Any, types: list[str]) -> Any:
    """Types of all inputs and outputs; every one of them is row by row."""
    return trtp.AutoTuneCombination(", ".join(types), "LINEAR")


def _floats(trt: Any, dtype: Any) -> Floats:
    names: dict[Any, Floats] = {trt.float32: "fp32", trt.float16: "fp16", trt.bfloat16: "bf16"}
    return names[dtype]


def _tensorrt() -> tuple[Any, Any]:
    try:
        import tensorrt as trt
        import tensorrt.plugin as trtp
        import triton  # noqa: F401  (which compiles the kernels when an engine is built)
    except ModuleNotFoundError as error:
        raise MissingBackendError(
            f"{error.name} is not installed",
            expected="TensorRT, Triton and torch for plugins",
            remedy='pip install "lopa-export[tensorrt,plugins]", or build the engine without plugins',
        ) from error
    return trt, trtp
