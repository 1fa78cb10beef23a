"""Comparison of a quantized bundle's weights with its checkpoint: errors must be at most half a step.

The module is independent of lopa.export.weights.quantize_tensor, which it checks. It relies only on the bundle's
format.
"""

from collections.abc import Iterator, Mapping

import numpy as np
import torch

from lopa.export.families import FAMILIES
from lopa.export.verify.differences import Difference, OutputError, difference_of
from lopa.runtime.bundle import Bundle
from lopa.runtime.bundle.network import TensorSpec, network_from_dimensions
from lopa.runtime.bundle.weights import BundleWeights, weights_from_bundle
from lopa.runtime.contract import Floats

_STEPS = 0.501
"""Tolerance in steps: half a step and the rounding of a merged adapter."""
_OTHERS = {"float32": 1e-5, "float16": 1e-3, "bfloat16": 8e-3}
"""Tolerance relative to the largest value, for tensors that are not quantized: rounding to the bundle's type."""


def errors_of_weights(bundle: Bundle, weights: Mapping[str, torch.Tensor]) -> tuple[OutputError, OutputError]:
    """Return the errors of the integer tensor and of the other tensor that differ most from `weights`.

    `weights` have the checkpoint's names. The error of integers is in steps, that is, relative to each number's scale.
    """
    integers, others = "", ""
    worst_integers = worst_others = Difference(0.0, 1.0, 0.0, 1.0)
    stored, network = weights_from_bundle(bundle), network_from_dimensions(bundle.manifest.dimensions)
    for name, values in stored.items():
        exact = _as_in_bundle(network.tensors[name], weights[_source_name(bundle, name)].numpy())
        scales = stored.scales(name)
        if scales is not None:
            found = _difference_in_steps(values, exact, scales)
            if not integers or found.absolute > worst_integers.absolute:
                integers, worst_integers = name, found
        else:
            found = difference_of(values.astype(np.float32), exact)
            if not others or found.relative > worst_others.relative:
                others, worst_others = name, found
    return (
        OutputError("checkpoint", f"{integers} in steps", worst_integers, _STEPS),
        OutputError("checkpoint", others, worst_others, _OTHERS[bundle.manifest.dtype]),
    )


def dequantized_weights(bundle: Bundle) -> dict[str, torch.Tensor]:
    """Return the values of the bundle's integers, as [outputs, inputs] under the checkpoint's names."""
    stored = weights_from_bundle(bundle)
    return {
        _source_name(bundle, name): torch.from_numpy(np.ascontiguousarray(stored[name].T))
        for name in _integer_names(stored)
    }


def _integer_names(stored: BundleWeights) -> Iterator[str]:
    return (name for name in stored if stored.scales(name) is not None)


def _difference_in_steps(values: Floats, exact: Floats, scales: Floats) -> Difference:
    """Return the difference of `values` and `exact` [inputs, outputs]. Scales are [outputs] or [blocks, outputs]."""
    steps = np.atleast_2d(scales.astype(np.float32)).repeat(len(values) // len(np.atleast_2d(scales)), axis=0)
    return difference_of((values - exact) / steps, np.zeros_like(values), least_magnitude=1.0)


def _as_in_bundle(tensor: TensorSpec, values: Floats) -> Floats:
    """Return `values` of a checkpoint, whose matrices are [outputs, inputs], in the layout of a bundle."""
    return values.swapaxes(-1, -2) if tensor.role == "matrix" else values


def _source_name(bundle: Bundle, name: str) -> str:
    """Return the checkpoint's name of a bundle's tensor."""
    architecture = FAMILIES[bundle.manifest.architecture].architecture
    if name in architecture.outer_names:
        return architecture.outer_names[name]
    _, layer, rest = name.split(".", 2)
    return architecture.layer_prefix.format(layer=layer) + architecture.layer_names[rest]
