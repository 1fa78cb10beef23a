"""What tracing has to know of each dialect: its module, example inputs, dynamic axes, opset and last passes."""

from collections.abc import Callable
from dataclasses import dataclass

import onnx_ir as ir
import torch

from lopa.export.module import ContractForward
from lopa.export.portable_module import PortableForward
from lopa.export.portable_passes import as_portable
from lopa.runtime.manifest import Dialect, ModelDimensions

# Example sizes of requests, branches, window, prefix and rows: the exporter takes a size of 1 for a constant, and
# equal sizes for one axis.
_REQUESTS, _BRANCHES, _WINDOW, _PREFIX, _ROWS = 2, 3, 11, 13, 7


@dataclass(frozen=True)
class TracedForm:
    """One dialect, as it is traced."""

    module: type[ContractForward]
    traced_opset: int
    example_inputs: Callable[[ModelDimensions, torch.dtype], tuple[object, ...]]
    dynamic_axes: Callable[[int], tuple[object, ...]]
    finish: Callable[[ir.Model], ir.Model]
    """From the tidied graph to the dialect's."""


def _standard_inputs(dimensions: ModelDimensions, dtype: torch.dtype) -> tuple[object, ...]:
    window = torch.zeros(_REQUESTS, _BRANCHES, _WINDOW, dtype=torch.int64)
    return (
        window,
        torch.zeros_like(window),
        torch.ones(_REQUESTS, _BRANCHES, _WINDOW, _WINDOW, dtype=torch.bool),
        torch.ones(_REQUESTS, _PREFIX, dtype=torch.bool),
        torch.zeros(_REQUESTS, _BRANCHES, _ROWS, dtype=torch.int64),
        torch.ones(_REQUESTS),
        _past(dimensions, dtype),
    )


def _standard_axes(layers: int) -> tuple[object, ...]:
    requests, branches, window, prefix, rows = _axes("requests", "branches", "window", "prefix", "rows")
    row = {0: requests, 1: branches, 2: window}
    return (
        row,
        row,
        {**row, 3: window},
        {0: requests, 1: prefix},
        {0: requests, 1: branches, 2: rows},
        {0: requests},
        [{0: requests, 2: prefix}] * (2 * layers),
    )


def _portable_inputs(dimensions: ModelDimensions, dtype: torch.dtype) -> tuple[object, ...]:
    window = torch.zeros(_REQUESTS, _WINDOW, dtype=torch.int64)
    return (
        window,
        torch.zeros_like(window),
        torch.zeros(_REQUESTS, 1, _WINDOW, _WINDOW),
        torch.zeros(_REQUESTS, 1, 1, _PREFIX),
        torch.zeros(_ROWS, dtype=torch.int64),
        torch.ones(_ROWS, 1),
        _past(dimensions, dtype),
    )


def _portable_axes(layers: int) -> tuple[object, ...]:
    requests, window, prefix, rows = _axes("requests", "window", "prefix", "rows")
    row = {0: requests, 1: window}
    return (
        row,
        row,
        {0: requests, 2: window, 3: window},
        {0: requests, 3: prefix},
        {0: rows},
        {0: rows},
        [{0: requests, 2: prefix}] * (2 * layers),
    )


def _past(dimensions: ModelDimensions, dtype: torch.dtype) -> list[torch.Tensor]:
    past = torch.zeros(_REQUESTS, dimensions.kv_heads, _PREFIX, dimensions.head_size, dtype=dtype)
    return [torch.zeros_like(past) for _ in range(2 * dimensions.layers)]


def _axes(*names: str) -> tuple[object, ...]:
    return tuple(torch.export.Dim(name) for name in names)


def _unchanged(model: ir.Model) -> ir.Model:
    return model


# 23 is the first ai.onnx opset with Attention, RotaryEmbedding and RMSNormalization; 18 the lowest that torch's
# exporter writes.
TRACED_FORMS: dict[Dialect, TracedForm] = {
    "standard": TracedForm(ContractForward, 23, _standard_inputs, _standard_axes, _unchanged),
    "portable": TracedForm(PortableForward, 18, _portable_inputs, _portable_axes, as_portable),
}
