"""One call of ATC as a list of arguments. It is never a string for a shell, where semicolons would need quotes.

rules.py checks the call, and build.py runs it.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from lopa.export.ascend.inputs import BucketedInputs
from lopa.runtime.ascend.ascend_manifest import EngineInput, Precision

MODEL_FOLDER = "model"
"""Folder of the graph and its weights, below the folder in which ATC runs."""
ENGINE_FOLDER = "engine"
CACHE_FOLDER = "cache"
PRECISION_MODES: dict[Precision, str] = {
    "origin": "origin",
    # "fp16" would compute everything in float16 and round positions and norms.
    "fp16": "mixed_float16",
    "bf16": "mixed_bfloat16",
}


@dataclass(frozen=True)
class AtcCall:
    """Inputs of ATC for one OM."""

    graph: str
    """File name in MODEL_FOLDER."""
    name: str
    """Name of the OM without its suffix."""
    soc_version: str
    precision: Precision
    int8: bool
    """True if AMCT quantized the graph."""
    inputs: tuple[EngineInput, ...]
    tuples: tuple[tuple[int, ...], ...]
    """Sizes for every -1 of the inputs, one tuple per shape bucket, or empty for a fixed shape."""


def calls_from_inputs(
    bucketed: BucketedInputs, *, graph: str, soc_version: str, precision: Precision, int8: bool
) -> list[AtcCall]:
    """Return one call with all shape buckets, or one call of a fixed shape for each tuple.

    Shapes are fixed for an int8 graph, which supports no dynamic shapes, and if all shape buckets have the same tuple.
    """

    def call(name: str, inputs: tuple[EngineInput, ...], tuples: tuple[tuple[int, ...], ...]) -> AtcCall:
        return AtcCall(graph, name, soc_version, precision, int8, inputs, tuples)

    if len(bucketed.different) > 1 and not int8:
        return [call("buckets", bucketed.inputs, bucketed.different)]
    return [call(f"bucket-{i}", bucketed.filled(numbers), ()) for i, numbers in enumerate(bucketed.different)]


def arguments_from_call(call: AtcCall) -> list[str]:
    """Return the command. It runs in the folder that has MODEL_FOLDER, ENGINE_FOLDER and CACHE_FOLDER."""
    buckets = [f"--dynamic_dims={';'.join(_numbers(each) for each in call.tuples)}"] if call.tuples else []
    return [
        "atc",
        "--mode=0",
        "--framework=5",
        f"--model={MODEL_FOLDER}/{call.graph}",
        f"--output={ENGINE_FOLDER}/{call.name}",
        f"--soc_version={call.soc_version}",
        "--input_format=ND",
        f"--input_shape={';'.join(_shape(each) for each in call.inputs)}",
        *buckets,
        f"--precision_mode_v2={PRECISION_MODES[call.precision]}",
        "--external_weight=1",
        "--op_compiler_cache_mode=enable",  # "force" corrupts a cache that another build uses
        f"--op_compiler_cache_dir={CACHE_FOLDER}",
        "--op_debug_level=0",  # other levels bypass the cache
        "--log=error",
    ]


def _shape(value: EngineInput) -> str:
    """Return a shape as ATC's argument expects it. A scalar is `name:`, without numbers."""
    return f"{value.name}:{_numbers(value.dims)}"


def _numbers(numbers: Sequence[int]) -> str:
    return ",".join(map(str, numbers))
