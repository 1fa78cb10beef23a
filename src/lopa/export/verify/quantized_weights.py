"""Comparison of a quantized bundle's weights with its checkpoint: errors must be at most half a step.

Calibration makes the errors of products small, not those of weights. Its errors are compared with the weights' size.

The module is independent of lopa.export.weights.quantize_tensor, which it checks. It relies only on the bundle's
format.
"""

from collections.abc import Collection, Iterator, Mapping
from operator import attrgetter
from typing import Any

import numpy as np
import torch
from torch.nn.functional import linear
from torch.overrides import TorchFunctionMode

from lopa.export.verify.differences import Difference, OutputError, difference_of
from lopa.export.verify.reference_names import parameter_in_canvas_network, parameter_in_network
from lopa.runtime.bundle import Bundle
from lopa.runtime.bundle.network import HEAD, network_from_dimensions
from lopa.runtime.bundle.weights import BundleWeights, weights_from_bundle
from lopa.runtime.contract import Floats

_STEPS = 0.501
"""Tolerance in steps: half a step and the rounding of a merged adapter."""
_CALIBRATED = {"int4": 0.4, "fp8": 0.12}
"""Tolerance of calibrated matrices: root mean square relative to the matrix. Twice that of the tiny model's. Those of
another matrix are near 1.4."""
_OTHERS = {"float32": 1e-5, "float16": 1e-3, "bfloat16": 8e-3}
"""Tolerance relative to the largest value, for tensors that are not quantized: rounding to the bundle's type."""


def errors_of_weights(bundle: Bundle, network: Any) -> tuple[OutputError, OutputError]:
    """Return the errors of the integer tensor and of the other tensor that differ most from transformers' `network`.

    The error of quantized tensors is in steps. A step of integers is their scale, and one of FP8 the distance to the
    next number. With calibration, it is relative to the tensor.
    """
    quantization, integers, others = bundle.manifest.quantization, "", ""
    calibrated = quantization is not None and quantization.calibration is not None
    error = attrgetter("relative_rms" if calibrated else "absolute")
    worst_integers = worst_others = Difference(0.0, 1.0, 0.0, 1.0)
    stored, specified = weights_from_bundle(bundle), network_from_dimensions(bundle.manifest.dimensions)
    for name, values in stored.items():
        exact = _parameter(network, name).numpy()
        if specified.tensors[name].role == "matrix":
            exact = exact.swapaxes(-1, -2)
        scales = stored.scales(name)
        if scales is not None:
            if calibrated:
                found = difference_of(values, exact)
            else:
                fp8 = bundle.manifest.tensors[name].dtype == "float8e4m3fn"
                steps = _fp8_steps(values, scales) if fp8 else _integer_steps(values, scales)
                found = difference_of((values - exact) / steps, np.zeros_like(values), least_magnitude=1.0)
            if not integers or error(found) > error(worst_integers):
                integers, worst_integers = name, found
        else:
            found = difference_of(values.astype(np.float32), exact)
            if not others or found.relative > worst_others.relative:
                others, worst_others = name, found
    if quantization is not None and calibrated:
        of_integers = OutputError("checkpoint", integers, worst_integers, _CALIBRATED[quantization.kind], by_rms=True)
    else:
        of_integers = OutputError("checkpoint", f"{integers} in steps", worst_integers, _STEPS)
    return (
        of_integers,
        OutputError("checkpoint", others, worst_others, _OTHERS[bundle.manifest.dtype]),
    )


class RoundedRows(TorchFunctionMode):
    """Mode in which products of torch's linear layers with some matrices round their rows to FP8, as torch does it."""

    def __init__(self, matrices: Collection[int]) -> None:
        """`matrices` has the addresses of storages."""
        super().__init__()
        self._matrices = matrices

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        """Call `func`, or compute the product of rounded rows."""
        if func is not linear or args[1].untyped_storage().data_ptr() not in self._matrices:
            return func(*args, **(kwargs or {}))
        rows, matrix, *bias = args
        scales = rows.abs().amax(dim=-1, keepdim=True).clamp_min(1e-30) * (1 / 448)
        rounded = (rows / scales).to(torch.float8_e4m3fn).float()
        product = linear(rounded, matrix) * scales
        return product + bias[0] if bias and bias[0] is not None else product


def dequantize(bundle: Bundle, network: Any) -> set[int]:
    """Replace the matrices of transformers' `network` by the values of the bundle's quantized ones.

    Return the addresses of the storages with values of FP8, for RoundedRows.
    """
    stored, fp8 = weights_from_bundle(bundle), set()
    for name in _integer_names(stored):
        if name == HEAD:  # it may share the embedding's memory
            network.lm_head.weight = torch.nn.Parameter(network.lm_head.weight.clone(), requires_grad=False)
        parameter = _parameter(network, name).copy_(torch.from_numpy(stored[name]).transpose(-1, -2))
        if bundle.manifest.tensors[name].dtype == "float8e4m3fn":
            fp8.add(parameter.untyped_storage().data_ptr())
    return fp8


def _integer_names(stored: BundleWeights) -> Iterator[str]:
    return (name for name in stored if stored.scales(name) is not None)


def _integer_steps(values: Floats, scales: Floats) -> Floats:
    """Return the steps of `values`, [inputs, outputs] or [experts, inputs, outputs].

    Scales are [outputs] or [blocks, outputs] for each expert.
    """
    *stacked, inputs, outputs = values.shape
    by_block = scales.astype(np.float32).reshape(*stacked, -1, outputs)
    return by_block.repeat(inputs // by_block.shape[-2], axis=-2)


def _fp8_steps(values: Floats, scales: Floats) -> Floats:
    """Return the steps of numbers with 3 bits after the first one, and exponents of at least -6."""
    by_output = scales[..., None, :]
    _, exponents = np.frexp(values / by_output)
    steps: Floats = np.ldexp(by_output, np.maximum(exponents - 1, -6) - 3)
    return steps


def _parameter(network: Any, name: str) -> torch.Tensor:
    """Return the network's parameter, or the part of one, for a bundle's tensor; matrices are [outputs, inputs]."""
    has_canvas = hasattr(network.model, "decoder")
    theirs = parameter_in_canvas_network(name) if has_canvas else parameter_in_network(name)
    module, _, part = theirs.removesuffix(".weight").rpartition(".")
    found: torch.Tensor
    if not module.endswith(".experts"):
        found = network.get_parameter_or_buffer(theirs)
    elif part == "down_proj":
        found = network.get_submodule(module).down_proj
    else:
        found = network.get_submodule(module).gate_up_proj.chunk(2, dim=1)[part == "up_proj"]
    return found
