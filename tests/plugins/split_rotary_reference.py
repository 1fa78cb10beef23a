"""Bias, norm of heads and rotary position embedding in numpy with float64, the reference of split_rotary_kernel."""

from typing import Any

import numpy as np

Array = np.ndarray[Any, np.dtype[Any]]


def split_rotary_reference(
    query: Array,
    key: Array,
    value: Array,
    bias: Array | None,
    norms: tuple[Array, ...] | None,
    cos: Array,
    sin: Array,
    *,
    epsilon: float,
) -> tuple[Array, Array, Array]:
    """Return queries [rows, Hq, D], and keys and values [rows, Hkv, D].

    Inputs are [rows, heads, D], and bias is [Hq + 2 Hkv, D]. Norms have the weights [D] of queries and keys, and of
    values if these have a norm. cos and
    sin are [rows, rotated / 2]. Each step is rounded to the type of the inputs.
    """
    heads, kv_heads = query.shape[1], key.shape[1]
    half = cos.shape[1]
    c, s = (angles.astype(np.float64)[:, None] for angles in (cos, sin))
    if bias is not None:
        parts = np.split(bias.astype(np.float64), [heads, heads + kv_heads])
        query, key, value = (
            (x.astype(np.float64) + part).astype(x.dtype) for x, part in zip((query, key, value), parts, strict=True)
        )
    if norms is not None:
        parts = zip((query, key, value), norms, strict=False)
        query, key, value = [*(_normed(x, weight, epsilon) for x, weight in parts), value][:3]
    turned = []
    for x in (query, key):
        a, b, rest = np.split(x.astype(np.float64), [half, 2 * half], axis=-1)
        turned.append(np.concatenate([a * c - b * s, b * c + a * s, rest], axis=-1).astype(x.dtype))
    return turned[0], turned[1], value


def _normed(x: Array, weight: Array, epsilon: float) -> Array:
    wide = x.astype(np.float64)
    scale = np.sqrt(np.square(wide).mean(-1, keepdims=True) + epsilon)
    return (wide / scale * weight.astype(np.float64)).astype(x.dtype)
