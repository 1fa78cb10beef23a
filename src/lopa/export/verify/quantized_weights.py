"""Comparison of a quantized bundle's weights with its checkpoint: errors must be at most half a step.

The module is independent of lopa.export.weights.quantize_tensor, which it checks. It relies only on the bundle's
format.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import numpy as np
import torch

from lopa.export.families import FAMILIES
from lopa.export.verify.differences import Difference, OutputError, difference_of
from lopa.runtime.bundle import Bundle
from lopa.runtime.bundle.network import TensorSpec, network_from_dimensions
from lopa.runtime.bundle.weights import BundleWeights, weights_from_bundle
from lopa.runtime.contract import Floats

_EXPERT = "{expert}"
"""Place of an expert's number in a name of the checkpoint."""
_STACKED = 3
"""Number of axes of the matrices of all experts in a bundle."""
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
        exact = _exact_values(bundle, name, network.tensors[name], weights)
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


def dequantized_weights(bundle: Bundle, weights: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Return `weights`, which have the checkpoint's names, with the values of the bundle's integers in their places."""
    stored, changed = weights_from_bundle(bundle), dict(weights)
    for name in _integer_names(stored):
        values = stored[name]
        for place, matrix in zip(_places(bundle, name), values if values.ndim == _STACKED else [values], strict=True):
            exact, found = changed[place.tensor], torch.from_numpy(np.ascontiguousarray(matrix.T))
            if place.rows is not None:
                found = torch.cat([exact[: place.rows.start], found, exact[place.rows.stop :]])
            changed[place.tensor] = found
    return changed


@dataclass(frozen=True)
class _Place:
    """Place of a matrix in the checkpoint."""

    tensor: str
    rows: slice | None = None
    """Rows of a tensor that also has other matrices; None for the whole tensor."""


def _integer_names(stored: BundleWeights) -> Iterator[str]:
    return (name for name in stored if stored.scales(name) is not None)


def _difference_in_steps(values: Floats, exact: Floats, scales: Floats) -> Difference:
    """Return the difference of `values` and `exact`, [inputs, outputs] or [experts, inputs, outputs].

    Scales are [outputs] or [blocks, outputs] for each expert.
    """
    *stacked, inputs, outputs = values.shape
    by_block = scales.astype(np.float32).reshape(*stacked, -1, outputs)
    steps = by_block.repeat(inputs // by_block.shape[-2], axis=-2)
    return difference_of((values - exact) / steps, np.zeros_like(values), least_magnitude=1.0)


def _exact_values(bundle: Bundle, name: str, tensor: TensorSpec, weights: Mapping[str, torch.Tensor]) -> Floats:
    """Return the checkpoint's values of a bundle's tensor, in the layout of a bundle."""
    found = []
    for place in _places(bundle, name):
        values = weights[place.tensor]
        found.append((values if place.rows is None else values[place.rows]).numpy())
    exact: Floats = np.stack(found) if len(tensor.shape) == _STACKED else found[0]
    return exact.swapaxes(-1, -2) if tensor.role == "matrix" else exact


def _places(bundle: Bundle, name: str) -> list[_Place]:
    """Return the places in the checkpoint of a bundle's tensor: one per expert for stacked matrices, otherwise one."""
    sizes, architecture = bundle.manifest.dimensions, FAMILIES[bundle.manifest.architecture].architecture
    if name in architecture.outer_names:
        return [_Place(architecture.outer_names[name])]
    _, layer, rest = name.split(".", 2)
    tensor = architecture.layer_prefix.format(layer=layer) + architecture.layer_names[rest]
    if _EXPERT in tensor and sizes.moe is not None:
        return [_Place(tensor.replace(_EXPERT, str(expert))) for expert in range(sizes.moe.experts)]
    queries, keys = sizes.heads * sizes.head_size, sizes.kv_heads * sizes.head_size
    rows = {
        "attention.query.weight": slice(0, queries),
        "attention.key.weight": slice(queries, queries + keys),
        "attention.value.weight": slice(queries + keys, queries + 2 * keys),
    }
    is_fused = rest in rows and list(architecture.layer_names.values()).count(architecture.layer_names[rest]) > 1
    return [_Place(tensor, rows[rest] if is_fused else None)]
