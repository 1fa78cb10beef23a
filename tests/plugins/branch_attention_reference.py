"""Branch attention in numpy with float64, the reference of the kernel. It is readable but slow."""

import numpy as np
import numpy.typing as npt

from lopa.runtime.contract import Bool

Float64 = npt.NDArray[np.float64]


def branch_attention_reference(
    query: npt.ArrayLike,
    key: npt.ArrayLike,
    value: npt.ArrayLike,
    past_key: npt.ArrayLike,
    past_value: npt.ArrayLike,
    window_mask: Bool,
    prefix_mask: Bool,
) -> Float64:
    """Let every window row attend to the committed rows of its request and to rows of its own branch.

    `query` is [R, B, Hq, W, D]; `key` and `value` are [R, B, Hkv, W, D]. `past_key` and `past_value` are [R, Hkv, P,
    D]. `window_mask` is [R, B, W, W] and `prefix_mask` [R, P]. Scores are divided by the square root of D. Query head h
    reads key-value head h // (Hq / Hkv). The result is float64 [R, B, Hq, W, D]. A row that attends to nothing is zero.
    """
    q, k, v, past_k, past_v = (np.asarray(x, np.float64) for x in (query, key, value, past_key, past_value))
    requests, branches, heads, _, size = q.shape
    kv_heads = k.shape[2]
    # [R, B, Hkv, G x W, D]: query heads that share a key-value head, one after another
    rows = q.reshape(requests, branches, kv_heads, -1, size) / np.sqrt(size)
    mask = np.tile(window_mask, (1, 1, heads // kv_heads, 1))[:, :, None]
    scores = np.concatenate(
        [
            np.where(prefix_mask[:, None, None, None], np.einsum("rbhmd,rhpd->rbhmp", rows, past_k), -np.inf),
            np.where(mask, np.einsum("rbhmd,rbhwd->rbhmw", rows, k), -np.inf),
        ],
        axis=-1,
    )
    greatest = scores.max(-1, keepdims=True)
    weights = np.exp(scores - np.where(np.isfinite(greatest), greatest, 0.0))
    prefix = past_k.shape[2]
    mixed = np.einsum("rbhmp,rhpd->rbhmd", weights[..., :prefix], past_v)
    mixed += np.einsum("rbhmw,rbhwd->rbhmd", weights[..., prefix:], v)
    total = weights.sum(-1, keepdims=True)
    attended: Float64 = (mixed / np.where(total > 0, total, 1.0)).reshape(q.shape)
    return attended
