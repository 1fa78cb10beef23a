"""Rounding of a matrix to int4 so that the errors of its products with given rows cancel: GPTQ (arXiv 2210.17323).

The inputs of a matrix are rounded in their order. The error of one is distributed over the inputs that follow, weighted
by the inverse of the rows' Gram matrix. File layout and graph are those of plain rounding.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from lopa.export.weights.plan import BLOCK, Dtype
from lopa.export.weights.quantize_tensor import int4_scales

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


def calibrated_int4(values: Tensor, factors: Sequence[InputFactor], scale_dtype: Dtype) -> tuple[Tensor, Tensor]:
    """Quantize float32 [inputs, some outputs] to int8 of the same shape, and scales [inputs / BLOCK, outputs].

    `factors` cover all inputs. Scales have the type `scale_dtype`.
    """
    integers = torch.empty(values.shape, dtype=torch.int8)
    scales = []
    for factor in factors:
        rest = values[factor.inputs].clone()
        for first in range(0, len(rest), BLOCK):
            block = slice(first, first + BLOCK)
            rounded, errors, scale = _rounded_block(rest[block], factor.upper[block, block], scale_dtype)
            integers[factor.inputs][block] = rounded
            scales.append(scale)
            rest[first + BLOCK :] -= factor.upper[block, first + BLOCK :].T @ errors
    return integers, torch.stack(scales)


def _rounded_block(block: Tensor, upper: Tensor, scale_dtype: Dtype) -> tuple[Tensor, Tensor, Tensor]:
    """Round the inputs of one block [BLOCK, outputs] in turn. Return integers, weighted errors and scales."""
    scale = _best_scales(block, scale_dtype)
    step = scale.float()
    rest, rounded, errors = block.clone(), torch.empty_like(block), torch.empty_like(block)
    for i in range(len(block)):
        rounded[i] = (rest[i] / step).round_().clamp_(-8, 7)
        errors[i] = (rest[i] - rounded[i] * step) / upper[i, i]
        rest[i:] -= torch.outer(upper[i, i:], errors[i])
    return rounded.to(torch.int8), errors, scale


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
