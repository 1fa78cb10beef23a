"""Draws of tokens for canvases, the same on every engine: in float32 with sums that are exact in any order.

float64 is slow or missing on accelerators, and OpenVINO computes it in float32. Float32 sums of groups of probabilities
are therefore added up as digits, whole numbers that float32 holds.
"""

import math

import torch
from torch import Tensor

_BASE = 4096.0
"""Base of the digits. Sums of 4,096 digits are exact."""
_Digits = list[Tensor]
"""Numbers times _BASE as whole numbers, next digits, and rests, each of weight 1 / _BASE of those before."""


def drawn_tokens(probabilities: Tensor, uniform: Tensor) -> Tensor:
    """Return the first token at which the sum of the probabilities [.., V] exceeds `uniform` [..] of their total."""
    tokens = probabilities.shape[-1]
    size = math.isqrt(tokens)
    missing = torch.zeros(-tokens % size)
    if len(missing):
        probabilities = torch.cat([probabilities, probabilities[..., :1] * 0.0 + missing], dim=-1)
    groups = probabilities.reshape(*uniform.shape, -(-tokens // size), size)
    digits = _digits(groups.sum(-1))
    sums = [each.cumsum(-1) for each in digits]
    target = _product(uniform.unsqueeze(-1), [each[..., -1:] for each in sums])
    group = _reached(sums, target)
    is_group = (group == torch.arange(groups.shape[-2])).float()
    row = _digits((groups * is_group.unsqueeze(-1)).sum(-2))
    before = [((total - own) * is_group).sum(-1, keepdim=True) for total, own in zip(sums, digits, strict=True)]
    within = _reached([first + each.cumsum(-1) for first, each in zip(before, row, strict=True)], target)
    found = (group * size + within).squeeze(-1)
    return torch.where(found > tokens - 1, tokens - 1, found).long()


def _digits(x: Tensor) -> _Digits:
    """Return numbers up to 1 in digits."""
    first = (x * _BASE).int().float()
    rest = (x * _BASE - first) * _BASE
    second = rest.int().float()
    return [first, second, (rest - second) * _BASE]


def _product(uniform: Tensor, total: _Digits) -> list[Tensor]:
    """Return the summands of `uniform` times the sum `total` of digits, of weights 1 / _BASE and on."""
    first, second, third = total
    carried = (third / _BASE).int().float()
    second, third = second + carried, third - carried * _BASE
    carried = (second / _BASE).int().float()
    first, second = first + carried, second - carried * _BASE
    high = (uniform * _BASE).int().float()
    low = (uniform * _BASE - high) * _BASE
    return [high * first, high * second + low * first, high * third + low * second]


def _reached(sums: _Digits, target: list[Tensor]) -> Tensor:
    """Return the number of `sums` [.., n] up to `target` [.., 1], below n, float32 [.., 1]."""
    first, second, third = (each[..., :-1] for each in sums)
    # The terms are whole numbers that float32 holds where they cancel, so that the sign is right.
    above = ((first * _BASE + (second - target[0])) * _BASE + (third - target[1])) * _BASE - target[2]
    return above.shape[-1] - (above > 0).float().sum(-1, keepdim=True)
