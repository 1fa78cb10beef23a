"""Inputs of a portable graph in ATC's form: shapes with -1 for dynamic axes, and their sizes in each shape bucket.

S = B x W and M = R x B x Q are folded (docs/concepts/contract.md), so two shape buckets can have the same tuple.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass

import onnx
import onnx.helper

from lopa.runtime.ascend.ascend_manifest import EngineInput, EngineOutput
from lopa.runtime.bundle.buckets import ShapeBucket
from lopa.runtime.contract import ROTARY_COS
from lopa.runtime.contract.portable_form import portable_input_names
from lopa.runtime.errors import BadInputError

OPEN = -1
Axis = int | str
_COUNTED = re.compile(r"(?:(\d+)\*)?(requests|window|prefix|rows)", re.ASCII)


@dataclass(frozen=True)
class BucketedInputs:
    """All inputs, and the sizes of their dynamic axes in each shape bucket."""

    inputs: tuple[EngineInput, ...]
    tuples: tuple[tuple[int, ...], ...]
    """Sizes for every -1 of the inputs, one tuple per shape bucket, in the order of the inputs and buckets."""

    @property
    def different(self) -> tuple[tuple[int, ...], ...]:
        """Distinct tuples."""
        return tuple(dict.fromkeys(self.tuples))

    def filled(self, numbers: Sequence[int]) -> tuple[EngineInput, ...]:
        """Return the inputs with the fixed shape of a tuple."""
        left = iter(numbers)
        return tuple(
            EngineInput(
                name=each.name, dtype=each.dtype, dims=[next(left) if dim == OPEN else dim for dim in each.dims]
            )
            for each in self.inputs
        )


def bucketed_inputs(model: onnx.ModelProto, buckets: Sequence[ShapeBucket]) -> BucketedInputs:
    """Return the inputs of a portable graph for `buckets`. An axis with one size in all of them becomes a number.

    Raises BadInputError for a graph with other inputs or axes than the portable form.
    """
    shapes = {value.name: _axes(value) for value in model.graph.input}
    named = list(dict.fromkeys(axis for axes in shapes.values() for axis in axes if isinstance(axis, str)))
    _check_portable(list(shapes), named)
    sizes = [{axis: _size_of_axis(axis, bucket) for axis in named} for bucket in buckets]
    fixed = {axis: number for axis, number in sizes[0].items() if all(each[axis] == number for each in sizes)}
    inputs = tuple(
        EngineInput(name=value.name, dtype=_dtype(value), dims=[_dim(axis, fixed) for axis in shapes[value.name]])
        for value in model.graph.input
    )
    open_axes = [axis for axes in shapes.values() for axis in axes if isinstance(axis, str) and axis not in fixed]
    return BucketedInputs(inputs, tuple(tuple(each[axis] for axis in open_axes) for each in sizes))


def engine_outputs(model: onnx.ModelProto) -> list[EngineOutput]:
    """Return names and types of the graph's outputs."""
    return [EngineOutput(name=value.name, dtype=_dtype(value)) for value in model.graph.output]


def _check_portable(inputs: Sequence[str], axes: Sequence[str]) -> None:
    unknown = [axis for axis in axes if _COUNTED.fullmatch(axis) is None]
    expected = portable_input_names(with_rotary=ROTARY_COS in inputs)
    if list(inputs) != expected or unknown:
        found = f"dynamic axes {', '.join(unknown)}" if unknown else f"{len(inputs)} inputs, the last {inputs[-1]}"
        raise BadInputError(
            f"the graph has {found}",
            expected=f"the portable form: {', '.join(expected)} over requests, window, prefix and rows",
            remedy="export the checkpoint again with --dialect portable or both",
        )


def _size_of_axis(axis: str, bucket: ShapeBucket) -> int:
    """Return the size of the axis that the exporter named `axis`.

    Examples of names are window, and 2*requests for the heads of all requests.
    """
    found = _COUNTED.fullmatch(axis)
    assert found is not None
    sizes = {
        "requests": bucket.requests,
        "window": bucket.branches * bucket.window,
        "prefix": bucket.prefix,
        "rows": bucket.requests * bucket.branches * bucket.wanted,
    }
    return int(found[1] or 1) * sizes[found[2]]


def _axes(value: onnx.ValueInfoProto) -> list[Axis]:
    return [
        axis.dim_value if axis.HasField("dim_value") else axis.dim_param for axis in value.type.tensor_type.shape.dim
    ]


def _dim(axis: Axis, fixed: dict[str, int]) -> int:
    return axis if isinstance(axis, int) else fixed.get(axis, OPEN)


def _dtype(value: onnx.ValueInfoProto) -> str:
    return str(onnx.helper.tensor_dtype_to_np_dtype(value.type.tensor_type.elem_type).name)
