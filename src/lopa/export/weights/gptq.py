"""Rounding of matrices to int4 or FP8 so that the errors of products with given rows cancel: GPTQ (arXiv 2210.17323).

The inputs of a matrix are rounded in their order. The error of one is distributed over the inputs that follow, weighted
by the inverse of the rows' Gram matrix. File layout and graph are those of plain rounding.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from lopa.export.weights.plan import BLOCK, Dtype, QuantizedKind
from lopa.export.weights.quantize_tensor import float32_from_fp8, fp8_scales, int4_scales, rounded_to_fp8

MAX_GROUP_INPUTS = 4096
"""Most inputs with one Gram matrix. Correlations between the groups of a wider matrix are ignored, to bound memory."""
_DAMPING = (0.01, 0.1, 1.0)
"""Shares of the mean diagonal that are added to it, in turn, until the Gram matrix has an inverse."""
_SHRINKING = tuple(1.0 - 0.025 * step for step in range(16))
"""Factors of a block's scale that are tried. A smaller scale clips the largest value and rounds the others better."""


@dataclass(frozen=True, eq=False)
class InputFactor:
    """Correlations of consecutive inputs."""

    inputs: slice
    upper: Tensor
    """Upper triangular U, float32 [inputs, inputs]. U'U is the inverse of the damped Gram matrix."""


def input_factors(rows: Tensor) -> Sequence[InputFactor]:
    """Return the factors of all inputs of the rows, float32 [rows, inputs], in groups of whole blocks."""
    inputs = rows.shape[1]
    count = -(-inputs // MAX_GROUP_INPUTS)
    width = -(-inputs // BLOCK // count) * BLOCK
    groups = [slice(first, min(first + width, inputs)) for first in range(0, inputs, width)]
    return [InputFactor(group, _factor(rows[:, group])) for group in groups]


def calibrated_integers(
    kind: QuantizedKind, values: Tensor, factors: Sequence[InputFactor], scale_dtype: Dtype
) -> tuple[Tensor, Tensor]:
    """Quantize float32 [inputs, some outputs] as integers_from_values does. `factors` cover all inputs."""
    integers = torch.empty(values.shape, dtype=torch.int8)
    fixed, scales = fp8_scales(values) if kind == "fp8" else None, []
    for factor in factors:
        rest = values[factor.inputs].clone()
        for first in range(0, len(rest), BLOCK):
            block = slice(first, first + BLOCK)
            scale = _best_scales(rest[block], scale_dtype) if fixed is None else fixed
            rounded, errors = _rounded_block(kind, rest[block], factor.upper[block, block], scale.float())
            integers[factor.inputs][block] = rounded
            scales.append(scale)
            rest[first + BLOCK :] -= factor.upper[block, first + BLOCK :].T @ errors
    return integers, torch.stack(scales) if fixed is None else fixed


def _rounded_block(kind: QuantizedKind, block: Tensor, upper: Tensor, step: Tensor) -> tuple[Tensor, Tensor]:
    """Round the inputs of one block [BLOCK, outputs] in turn. Return integers and weighted errors."""
    rest, rounded, errors = block.clone(), torch.empty(block.shape, dtype=torch.int8), torch.empty_like(block)
    for i in range(len(block)):
        scaled = rest[i] / step
        rounded[i] = rounded_to_fp8(scaled) if kind == "fp8" else scaled.round_().clamp_(-8, 7)
        values = float32_from_fp8(rounded[i]) if kind == "fp8" else rounded[i]
        errors[i] = (rest[i] - values * step) / upper[i, i]
        rest[i:] -= torch.outer(upper[i, i:], errors[i])
    return rounded, errors


def _best_scales(block: Tensor, dtype: Dtype) -> Tensor:
    """Return the scales [outputs] with the smallest sum of squared errors for a block [BLOCK, outputs]."""
    largest = int4_scales(block, dtype)
    best, error = largest, torch.full(largest.shape, torch.inf)
    for factor in _SHRINKING:
        scale = (largest.float() * factor).to(largest.dtype)
        step = scale.float().clamp_min(torch.finfo(torch.float32).tiny)
        found = (block - (block / step).round_().clamp_(-8, 7) * step).square_().sum(dim=0)
        best, error = torch.where(found < error, scale, best), torch.minimum(found, error)
    return torch.where(best > 0, best, largest)


def _factor(rows: Tensor) -> Tensor:
    """Return U, upper triangular with U'U = (rows' rows + damping)^-1."""
    gram: Tensor = rows.T @ rows
    mean = gram.diagonal().mean()
    if not mean > 0:
        return torch.eye(len(gram))
    for damping in _DAMPING:
        damped = gram.clone()
        damped.diagonal().add_(damping * mean)
        lower, failed = torch.linalg.cholesky_ex(damped)
        if failed:
            continue
        upper: Tensor
        upper, failed = torch.linalg.cholesky_ex(torch.cholesky_inverse(lower), upper=True)
        if not failed:
            return upper
    return torch.eye(len(gram))
