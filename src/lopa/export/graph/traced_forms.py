"""Inputs of tracing per dialect: module, example inputs, dynamic axes, opset and final passes."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import onnx_ir as ir
import torch
from torch import nn

from lopa.export.graph.canvas_module import CanvasForward
from lopa.export.graph.module import ContractForward, HiddenForward
from lopa.export.graph.portable_canvas import PortableCanvasForward
from lopa.export.graph.portable_module import PortableContractForward
from lopa.export.graph.portable_passes import as_portable
from lopa.runtime.bundle.manifest import Dialect, ModelDimensions
from lopa.runtime.bundle.network import network_from_dimensions
from lopa.runtime.contract.model_part import ModelPart, whole_model
from lopa.runtime.contract.portable_form import portable_input_names

# Example sizes of requests, branches, window, prefix and rows. They differ and are not 1, because the exporter treats
# a size of 1 as a constant and equal sizes as one axis.
_REQUESTS, _BRANCHES, _WINDOW, _PREFIX, _ROWS = 2, 3, 11, 13, 7


@dataclass(frozen=True)
class TracedForm:
    """Settings for tracing one dialect."""

    module: Callable[[ModelDimensions, torch.dtype, ModelPart, bool], nn.Module]
    """Constructor of the module, by dimensions, type, part, and with or without logits."""
    traced_opset: int
    example_inputs: Callable[[ModelDimensions, torch.dtype, ModelPart], tuple[object, ...]]
    input_names: Callable[[ModelPart], list[str]]
    dynamic_axes: Callable[[ModelDimensions, ModelPart], tuple[object, ...]]
    finish: Callable[[ir.Model], ir.Model]
    """Final passes, from the tidied graph to the dialect's."""


def _standard_module(dimensions: ModelDimensions, dtype: torch.dtype, part: ModelPart, with_logits: bool) -> nn.Module:
    network = network_from_dimensions(dimensions)
    if dimensions.canvas is not None:
        return CanvasForward(network, dtype=dtype, with_logits=with_logits)
    if part.is_last:
        return ContractForward(network, dtype=dtype, with_logits=with_logits, part=part)
    return HiddenForward(network, dtype, part)


def _standard_inputs(dimensions: ModelDimensions, dtype: torch.dtype, part: ModelPart) -> tuple[object, ...]:
    window = torch.zeros(_REQUESTS, _BRANCHES, _WINDOW, dtype=torch.int64)
    hidden = torch.zeros(2, *window.shape, dimensions.hidden_size)
    sampled: tuple[torch.Tensor, ...] = (
        torch.zeros(_REQUESTS, _BRANCHES, _ROWS, dtype=torch.int64),
        torch.ones(_REQUESTS),
    )
    if part.has_canvas:
        is_canvas = torch.ones_like(window, dtype=torch.bool)
        sampled += (is_canvas, torch.zeros_like(window), hidden[0].to(dtype), torch.zeros(sampled[0].shape))
    return (
        window if part.is_first else hidden,
        torch.zeros_like(window),
        torch.ones(_REQUESTS, _BRANCHES, _WINDOW, _WINDOW, dtype=torch.bool),
        torch.ones(_REQUESTS, _PREFIX, dtype=torch.bool),
        *(sampled if part.is_last else ()),
        _past(dimensions, dtype, part),
    )


def _standard_names(part: ModelPart) -> list[str]:
    return part.input_names()


def _standard_axes(_: ModelDimensions, part: ModelPart) -> tuple[object, ...]:
    requests, branches, window, prefix, rows = _axes("requests", "branches", "window", "prefix", "rows")
    row = {0: requests, 1: branches, 2: window}
    sampled = {0: requests, 1: branches, 2: rows}
    return (
        row if part.is_first else {1: requests, 2: branches, 3: window},
        row,
        {**row, 3: window},
        {0: requests, 1: prefix},
        *((sampled, {0: requests}) if part.is_last else ()),
        *((row, row, row, sampled) if part.has_canvas else ()),
        [{0: requests, 2: prefix}] * len(part.past_names),
    )


def _portable_module(dimensions: ModelDimensions, dtype: torch.dtype, part: ModelPart, with_logits: bool) -> nn.Module:
    if part != whole_model(dimensions.layers, has_canvas=part.has_canvas):
        raise ValueError(f"received {part}, expected all layers: only standard graphs have stages")
    form = PortableCanvasForward if part.has_canvas else PortableContractForward
    return form(network_from_dimensions(dimensions), dtype=dtype, with_logits=with_logits)


def _portable_inputs(dimensions: ModelDimensions, dtype: torch.dtype, part: ModelPart) -> tuple[object, ...]:
    window = torch.zeros(_REQUESTS, _WINDOW, dtype=torch.int64)
    past = (len(part.past_names), _REQUESTS * dimensions.cache_heads, _PREFIX, dimensions.cache_head_size)
    masks = (2, _WINDOW) if part.has_canvas else (1, 1)
    hidden = torch.zeros(*window.shape, dimensions.hidden_size, dtype=dtype)
    canvas = (torch.ones_like(window, dtype=torch.bool), hidden, torch.ones(_ROWS)) if part.has_canvas else ()
    return (
        window,
        torch.zeros_like(window),
        torch.zeros(_REQUESTS, masks[0], _WINDOW, _WINDOW),
        torch.zeros(_REQUESTS, *masks, _PREFIX),
        torch.zeros(_ROWS, dtype=torch.int64),
        torch.ones(_ROWS, 1),
        *canvas,
        torch.zeros(past, dtype=dtype),
    )


def _portable_names(part: ModelPart) -> list[str]:
    return portable_input_names(has_canvas=part.has_canvas)


def _portable_axes(dimensions: ModelDimensions, part: ModelPart) -> tuple[object, ...]:
    requests, window, prefix, rows = _axes("requests", "window", "prefix", "rows")
    row = {0: requests, 1: window}
    return (
        row,
        row,
        {0: requests, 2: window, 3: window},
        {0: requests, 3: prefix, **({2: window} if part.has_canvas else {})},
        {0: rows},
        {0: rows},
        *((row, row, {0: rows}) if part.has_canvas else ()),
        {1: dimensions.cache_heads * requests, 2: prefix},
    )


def _past(dimensions: ModelDimensions, dtype: torch.dtype, part: ModelPart) -> list[torch.Tensor]:
    past = torch.zeros(_REQUESTS, dimensions.cache_heads, _PREFIX, dimensions.cache_head_size, dtype=dtype)
    return [torch.zeros_like(past) for _ in part.past_names]


def _axes(*names: str) -> tuple[Any, ...]:
    return tuple(torch.export.Dim(name) for name in names)


def _unchanged(model: ir.Model) -> ir.Model:
    return model


# 23 is the first ai.onnx opset with Attention, RotaryEmbedding and RMSNormalization. 18 is the lowest that torch's
# exporter writes.
TRACED_FORMS: dict[Dialect, TracedForm] = {
    "standard": TracedForm(_standard_module, 23, _standard_inputs, _standard_names, _standard_axes, _unchanged),
    "portable": TracedForm(_portable_module, 18, _portable_inputs, _portable_names, _portable_axes, as_portable),
}
