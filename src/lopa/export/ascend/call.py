"""One call of ATC as a list of arguments, never a string for a shell: an unquoted semicolon is its commonest fault.

Pure. Does not judge the call (rules.py) and does not run it (process.py).
"""

from collections.abc import Sequence
from dataclasses import dataclass

from lopa.export.ascend.inputs import BucketedInputs
from lopa.runtime.ascend.manifest import EngineInput, Precision

MODEL_FOLDER = "model"
"""The graph and its weights, below the folder that ATC runs in."""
ENGINE_FOLDER = "engine"
CACHE_FOLDER = "cache"
PRECISION_MODES: dict[Precision, str] = {
    "origin": "origin",
    # Not "fp16", which computes everything in float16 and rounds positions and norms.
    "fp16": "mixed_float16",
    "bf16": "mixed_bfloat16",
}


@dataclass(frozen=True)
class AtcCall:
    """What is compiled to one OM."""

    graph: str
    """File name in MODEL_FOLDER."""
    name: str
    """Of the OM, without its suffix."""
    soc_version: str
    precision: Precision
    int8: bool
    """Whether the graph was quantized by AMCT."""
    inputs: tuple[EngineInput, ...]
    tuples: tuple[tuple[int, ...], ...]
    """What stands for every -1 of the inputs, bucket by bucket; empty: a fixed shape."""


def calls_from_inputs(
    bucketed: BucketedInputs, *, graph: str, soc_version: str, precision: Precision, int8: bool
) -> list[AtcCall]:
    """One call with all buckets; or, where buckets are not possible, a call of a fixed shape for each tuple.

    They are not for integers, nor where all buckets have one tuple.
    """

    def call(name: str, inputs: tuple[EngineInput, ...], tuples: tuple[tuple[int, ...], ...]) -> AtcCall:
        return AtcCall(graph, name, soc_version, precision, int8, inputs, tuples)

    if len(bucketed.different) > 1 and not int8:
        return [call("buckets", bucketed.inputs, bucketed.different)]
    return [call(f"bucket-{i}", bucketed.filled(numbers), ()) for i, numbers in enumerate(bucketed.different)]


def arguments_from_call(call: AtcCall) -> list[str]:
    """The command, to be run in the folder that has MODEL_FOLDER, ENGINE_FOLDER and CACHE_FOLDER."""
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
        "--op_compiler_cache_mode=enable",  # "force" spoils a cache that another build uses
        f"--op_compiler_cache_dir={CACHE_FOLDER}",
        "--op_debug_level=0",  # others bypass the cache
        "--log=error",
    ]


def _shape(value: EngineInput) -> str:
    """A scalar has no numbers: `name:`."""
    return f"{value.name}:{_numbers(value.dims)}"


def _numbers(numbers: Sequence[int]) -> str:
    return ",".join(map(str, numbers))
