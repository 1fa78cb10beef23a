"""Token statistics in numpy with float64, the references of the kernels. They are readable but slow."""

from typing import Any

import numpy as np
import numpy.typing as npt

from lopa.runtime.contract import TOP_K, Int64

Array = np.ndarray[Any, np.dtype[Any]]
Float64 = npt.NDArray[np.float64]


def token_statistics_reference(
    logits: npt.ArrayLike, temperature: npt.ArrayLike, top: int = TOP_K
) -> tuple[Int64, Float64, Float64]:
    """Return the statistics of softmax(logits / temperature) for every row.

    `logits` is [N, V], `temperature` [N]. The result has the ids, int64 [N, top], most probable first and equal ones by
    lower id. It also has their log-probabilities, float64 [N, top], and the entropy in nats, float64 [N].
    """
    z = np.asarray(logits, np.float64) / np.asarray(temperature, np.float64)[:, None]
    above = z - z.max(-1, keepdims=True)
    logprobs = above - np.log(np.exp(above).sum(-1, keepdims=True))
    ids = np.argsort(np.where(np.isnan(z), -np.inf, -z), axis=-1, kind="stable")[:, :top]
    terms = np.where(np.isneginf(logprobs), 0.0, np.exp(logprobs) * np.where(np.isneginf(logprobs), 0.0, logprobs))
    return ids, np.take_along_axis(logprobs, ids, -1), -terms.sum(-1)


def statistics_partials_reference(
    logits: Array, temperature: Array, columns_per_split: int, splits: int, top: int
) -> tuple[Array, Array, Array, Array, Array]:
    """Return greatest, total, weighted, ids and values of every split of every row, as statistics_partials_kernel."""
    rows, vocabulary = logits.shape
    z = (logits.astype(np.float32) / np.repeat(temperature, rows // len(temperature))[:, None]).astype(np.float32)
    greatest, total, weighted = np.full((rows, splits), -np.inf, np.float32), *np.zeros((2, rows, splits), np.float32)
    ids, values = np.full((rows, splits, top), -1, np.int32), np.full((rows, splits, top), np.nan, np.float32)
    for row, split in np.ndindex(rows, splits):
        begin = split * columns_per_split
        part = z[row, begin : min(begin + columns_per_split, vocabulary)].astype(np.float64)
        if len(part):
            greatest[row, split] = part.max()
            above = part[part > -np.inf] - part.max()
            total[row, split] = np.exp(above).sum()
            weighted[row, split] = (np.exp(above) * above).sum()
            best = np.argsort(np.where(np.isnan(part), -np.inf, -part), kind="stable")[:top]
            ids[row, split, : len(best)] = begin + best
            values[row, split, : len(best)] = part[best]
    return greatest, total, weighted, ids, values


def statistics_merge_reference(
    greatest: Array, total: Array, weighted: Array, ids: Array, values: Array, top: int
) -> tuple[Array, Array, Array]:
    """Return ids int64 [rows, top], log-probabilities and entropy from splits, as statistics_merge_kernel."""
    rows = len(ids)
    peak = greatest.max(-1, keepdims=True).astype(np.float64)
    down = np.where(np.isneginf(greatest), 0.0, greatest - peak)
    scale = np.where(np.isneginf(greatest), 0.0, np.exp(down))
    whole = (total * scale).sum(-1)
    mean = ((weighted + total * down) * scale).sum(-1)
    found_ids, logprobs = np.empty((rows, top), np.int64), np.empty((rows, top), np.float32)
    for row in range(rows):
        used = ids[row].reshape(-1) >= 0
        number, value = ids[row].reshape(-1)[used], values[row].reshape(-1)[used].astype(np.float64)
        best = np.lexsort((number, np.where(np.isnan(value), -np.inf, -value)))[:top]
        found_ids[row] = number[best]
        logprobs[row] = value[best] - peak[row] - np.log(whole[row])
    return found_ids, logprobs, (np.log(whole) - mean / whole).astype(np.float32)
