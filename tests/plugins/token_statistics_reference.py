"""Token statistics in numpy with float64, the reference of the kernels. It is readable but slow."""

import numpy as np
import numpy.typing as npt

from lopa.runtime.contract import TOP_K, Int64

Float64 = npt.NDArray[np.float64]


def token_statistics_reference(
    hidden: npt.ArrayLike, weight: npt.ArrayLike, temperature: npt.ArrayLike
) -> tuple[Int64, Float64, Float64]:
    """Return the statistics of softmax(hidden @ weight / temperature) for every row.

    `hidden` is [N, H], `weight` [H, V] in the exporter's layout, `temperature` [N]. The result has the ids, int64 [N,
    K], most probable first and equal ones by lower id. It also has their log-probabilities, float64 [N, K], and the
    entropy in nats, float64 [N].
    """
    z = np.asarray(hidden, np.float64) @ np.asarray(weight, np.float64)
    z /= np.asarray(temperature, np.float64)[:, None]
    above = z - z.max(-1, keepdims=True)
    logprobs = above - np.log(np.exp(above).sum(-1, keepdims=True))
    ids = np.argsort(-z, axis=-1, kind="stable")[:, :TOP_K]
    return ids, np.take_along_axis(logprobs, ids, -1), -(np.exp(logprobs) * logprobs).sum(-1)
