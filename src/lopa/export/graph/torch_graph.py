"""ONNX graph of the contract from model dimensions. Its weights refer to a file that another module writes.

A module of lopa.export.graph.traced_forms is traced with fake tensors, which have shapes but no values. The required
memory therefore does not depend on the size of the model.
"""

import logging
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import cast

import onnx_ir as ir
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from lopa.export.graph.canvas_module import frequencies_of_canvas
from lopa.export.graph.experts import QuantizedExpertsPass
from lopa.export.graph.module import inverse_frequencies
from lopa.export.graph.portable_passes import as_quantized_portable
from lopa.export.graph.quantize_pass import QuantizedMatricesPass, QuantizedMatrix
from lopa.export.graph.tidy_passes import tidy
from lopa.export.graph.traced_forms import TRACED_FORMS
from lopa.export.weights.plan import Dtype, StoredDtype
from lopa.export.weights.torch_dtypes import TORCH_DTYPES
from lopa.runtime.bundle.manifest import Dialect, ModelDimensions, TensorRecord, scale_name
from lopa.runtime.contract.model_part import ModelPart

_MATRIX_AXES = 2
_IR_DTYPES: dict[StoredDtype, ir.DataType] = {
    "float32": ir.DataType.FLOAT,
    "float16": ir.DataType.FLOAT16,
    "bfloat16": ir.DataType.BFLOAT16,
    "int8": ir.DataType.INT8,
    "int4": ir.DataType.INT4,
    "float8e4m3fn": ir.DataType.FLOAT8E4M3FN,
}


def graph_from_dimensions(
    dimensions: ModelDimensions,
    records: Mapping[str, TensorRecord],
    weights_name: str,
    *,
    dialect: Dialect = "standard",
    dtype: Dtype,
    with_logits: bool,
    part: ModelPart | None = None,
) -> ir.Model:
    """Return the graph with the initializers `records`, all in the file `weights_name` in the graph's folder.

    Experts are one node per sparse layer. lopa.export.graph.expert_forms replaces it by operators of the dialect. With
    `part`, return the graph of these layers and their tensors (standard dialect only).
    """
    part = part or dimensions.whole_model
    model = traced_graph(dimensions, dialect, dtype, part, with_logits=with_logits)
    model.producer_name, model.producer_version = "lopa-export", None
    initializers = model.graph.initializers
    tensors = {name: _external_tensor(name, record, weights_name) for name, record in records.items()}
    # Quantized matrices and their scales replace traced matrices at the end.
    for name in initializers.keys() & tensors.keys():
        if not records[name].is_quantized:
            initializers[name].const_value = tensors[name]
    has_canvas = dimensions.canvas is not None
    frequencies = {"inverse_frequencies": inverse_frequencies(dimensions)}
    for name, values in (frequencies_of_canvas(dimensions) if has_canvas else frequencies).items():
        if name in initializers:  # a model may have full layers only
            initializers[name].const_value = ir.tensor(values.numpy(), name=name)
    quantized = {
        name: QuantizedMatrix(tensors[name], tensors[scale_name(name)])
        for name, record in records.items()
        if record.is_quantized and name in initializers
    }
    finish = as_quantized_portable if quantized and dialect == "portable" else TRACED_FORMS[dialect].finish
    model = finish(tidy(model))
    if not quantized:
        return model
    stacked = {name: matrix for name, matrix in quantized.items() if len(records[name].shape) > _MATRIX_AXES}
    model = QuantizedExpertsPass(stacked)(model).model
    matrices = {name: matrix for name, matrix in quantized.items() if name not in stacked}
    return QuantizedMatricesPass(matrices, rounds_rows=dialect == "standard")(model).model


def traced_graph(
    dimensions: ModelDimensions, dialect: Dialect, dtype: Dtype, part: ModelPart, *, with_logits: bool
) -> ir.Model:
    """Return the exporter's graph of the module, whose tensors have no values. It depends only on the arguments."""
    form = TRACED_FORMS[dialect]
    with FakeTensorMode(), _quiet_exporter():
        program = torch.onnx.export(
            form.module(dimensions, TORCH_DTYPES[dtype], part, with_logits).eval(),
            form.example_inputs(dimensions, TORCH_DTYPES[dtype], part),
            dynamo=True,
            opset_version=form.traced_opset,
            input_names=form.input_names(part),
            output_names=part.output_names(with_logits=with_logits),
            dynamic_shapes=form.dynamic_axes(dimensions, part),
            optimize=False,
            verbose=False,
        )
    model: ir.Model = cast(torch.onnx.ONNXProgram, program).model  # the exporter returns None only without dynamo
    return model


def _external_tensor(name: str, record: TensorRecord, weights_name: str) -> ir.ExternalTensor:
    return ir.ExternalTensor(
        location=weights_name,
        offset=record.offset,
        length=record.length,
        dtype=_IR_DTYPES[record.dtype],
        shape=ir.Shape(record.shape),
        name=name,
    )


@contextmanager
def _quiet_exporter() -> Iterator[None]:
    """Silence the exporter's warnings about its own deprecated calls, shared axis names and a missing torchvision."""
    logger = logging.getLogger("torch.onnx._internal.exporter._registration")
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logger.setLevel(level)
