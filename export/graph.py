"""Model dimensions -> the ONNX graph of the engine contract, its weights referring to a file that is written elsewhere.

Traces lopa.export.module with tensors that have shapes and no values, so the memory needed does not depend on the
model. Does not know any weight's value.
"""

import logging
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import cast

import onnx_ir as ir
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from lopa.export.graph_passes import tidy
from lopa.export.module import ContractForward, HiddenForward, inverse_frequencies
from lopa.export.quantize_graph import QuantizedMatricesPass, QuantizedMatrix
from lopa.export.torch_dtypes import TORCH_DTYPES
from lopa.export.weight_plan import Dtype, IntegerDtype
from lopa.runtime.manifest import ModelDimensions, TensorRecord, scale_name
from lopa.runtime.model_part import ModelPart, whole_model

OPSET = 23
"""The first ai.onnx opset with Attention, RotaryEmbedding and RMSNormalization."""
_IR_DTYPES: dict[Dtype | IntegerDtype, ir.DataType] = {
    "float32": ir.DataType.FLOAT,
    "float16": ir.DataType.FLOAT16,
    "bfloat16": ir.DataType.BFLOAT16,
    "int8": ir.DataType.INT8,
    "int4": ir.DataType.INT4,
}
# Example sizes of requests, branches, window, prefix and rows: the exporter takes a size of 1 for a constant, and
# equal sizes for one axis.
_REQUESTS, _BRANCHES, _WINDOW, _PREFIX, _ROWS = 2, 3, 11, 13, 7


def graph_from_dimensions(
    dimensions: ModelDimensions,
    records: Mapping[str, TensorRecord],
    weights_name: str,
    *,
    dtype: Dtype,
    with_logits: bool,
    part: ModelPart | None = None,
) -> ir.Model:
    """The graph whose initializers are `records`, each in the file `weights_name` beside the graph's own.

    With `part`, the graph of these layers, with their tensors of `records`.
    """
    part = part or whole_model(dimensions.layers)
    with FakeTensorMode(), _quiet_exporter():
        program = torch.onnx.export(
            _module_of_part(dimensions, TORCH_DTYPES[dtype], part, with_logits=with_logits).eval(),
            _example_inputs(dimensions, TORCH_DTYPES[dtype], part),
            dynamo=True,
            opset_version=OPSET,
            input_names=part.input_names,
            output_names=part.output_names(with_logits=with_logits),
            dynamic_shapes=_dynamic_axes(part),
            optimize=False,
            verbose=False,
        )
    model: ir.Model = cast(torch.onnx.ONNXProgram, program).model  # None only without dynamo
    model.producer_name, model.producer_version = "lopa-export", None
    initializers = model.graph.initializers
    tensors = {name: _external_tensor(name, record, weights_name) for name, record in records.items()}
    # The others are integers and scales, which take the places of traced matrices at the end.
    for name in initializers.keys() & tensors.keys():
        if records[name].dtype == dtype:
            initializers[name].const_value = tensors[name]
    initializers["inverse_frequencies"].const_value = ir.tensor(
        inverse_frequencies(dimensions).numpy(), name="inverse_frequencies"
    )
    quantized = {
        name: QuantizedMatrix(tensors[name], tensors[scale_name(name)])
        for name, record in records.items()
        if record.dtype in ("int8", "int4") and name in initializers
    }
    model = tidy(model)
    return QuantizedMatricesPass(quantized)(model).model if quantized else model


def _external_tensor(name: str, record: TensorRecord, weights_name: str) -> ir.ExternalTensor:
    return ir.ExternalTensor(
        location=weights_name,
        offset=record.offset,
        length=record.length,
        dtype=_IR_DTYPES[record.dtype],
        shape=ir.Shape(record.shape),
        name=name,
    )


def _module_of_part(
    dimensions: ModelDimensions, dtype: torch.dtype, part: ModelPart, *, with_logits: bool
) -> ContractForward | HiddenForward:
    if part.is_last:
        return ContractForward(dimensions, dtype=dtype, with_logits=with_logits, part=part)
    return HiddenForward(dimensions, dtype, part)


def _example_inputs(dimensions: ModelDimensions, dtype: torch.dtype, part: ModelPart) -> tuple[object, ...]:
    window = torch.zeros(_REQUESTS, _BRANCHES, _WINDOW, dtype=torch.int64)
    hidden = torch.zeros(2, *window.shape, dimensions.hidden_size)
    past = torch.zeros(_REQUESTS, dimensions.kv_heads, _PREFIX, dimensions.head_size, dtype=dtype)
    wanted = (torch.zeros(_REQUESTS, _BRANCHES, _ROWS, dtype=torch.int64), torch.ones(_REQUESTS))
    return (
        window if part.is_first else hidden,
        torch.zeros_like(window),
        torch.ones(_REQUESTS, _BRANCHES, _WINDOW, _WINDOW, dtype=torch.bool),
        torch.ones(_REQUESTS, _PREFIX, dtype=torch.bool),
        *(wanted if part.is_last else ()),
        [torch.zeros_like(past) for _ in part.past_names],
    )


def _dynamic_axes(part: ModelPart) -> tuple[object, ...]:
    requests, branches, window, prefix, rows = (
        torch.export.Dim(name) for name in ("requests", "branches", "window", "prefix", "rows")
    )
    row = {0: requests, 1: branches, 2: window}
    wanted = ({0: requests, 1: branches, 2: rows}, {0: requests})
    return (
        row if part.is_first else {1: requests, 2: branches, 3: window},
        row,
        {**row, 3: window},
        {0: requests, 1: prefix},
        *(wanted if part.is_last else ()),
        [{0: requests, 2: prefix}] * len(part.past_names),
    )


@contextmanager
def _quiet_exporter() -> Iterator[None]:
    """The exporter warns about its own deprecated calls, axes that share a name, and an absent torchvision."""
    logger = logging.getLogger("torch.onnx._internal.exporter._registration")
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logger.setLevel(level)
