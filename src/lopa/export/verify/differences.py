"""How far an engine's outputs are from a reference's. Knows arrays and tolerances, no engine and no bundle.

The statistics are computed again here in float64 from the reference's logits, so that nothing of an engine's own
arithmetic is trusted.
"""

import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from lopa.runtime import contract
from lopa.runtime.contract import TOP_K, Float32, Floats, Int64, Statistics

Float64 = npt.NDArray[np.float64]

# Largest relative difference by the bundle's type. float32: two orders of summation. float16: the rounding of weights,
# cache and products. Measured with the tiny checkpoint over 20 seeds: at most 1.5e-5 and 2.4e-2, both of the entropy.
# bfloat16: 4.8e-2 with products in float32 (numpy), 4.6e-2 with a float32 bundle's products in bfloat16 (OpenVINO).
TOLERANCES = {"float32": 1e-4, "float16": 3e-2, "bfloat16": 2e-1}
# Largest root mean square of the differences, relative to that of the reference, for a bundle with integer matrices.
# Rounded activations make single numbers differ by far more, so the largest would tell little. Measured with the tiny
# checkpoint over 20 seeds: at most 6.4e-2 and 2.8e-2, both of the entropy; half the tolerance.
RMS_TOLERANCES = {"int8": 1.2e-1, "int4": 6e-2}
_MIN_MAGNITUDE = float(np.finfo(np.float32).tiny)


@dataclass(frozen=True)
class Difference:
    """What lies between one output and a reference's, over any number of comparisons."""

    absolute: float
    """The largest; infinite for a NaN, a wrong shape or an id that cannot be."""
    magnitude: float
    """The reference's largest absolute value, or the least that is taken for it."""
    error_squares: float
    """Sum of the squared differences; infinite as `absolute`."""
    squares: float
    """Sum of the reference's squares, each number counted as at least the least magnitude on average."""

    @property
    def relative(self) -> float:
        """`absolute` as a part of `magnitude`."""
        return self.absolute / self.magnitude if self.absolute else 0.0

    @property
    def relative_rms(self) -> float:
        """Root mean square of the differences as a part of the reference's."""
        return math.sqrt(self.error_squares / self.squares) if self.error_squares else 0.0

    def with_another(self, other: "Difference") -> "Difference":
        """Both comparisons as one."""
        return Difference(
            max(self.absolute, other.absolute),
            max(self.magnitude, other.magnitude),
            self.error_squares + other.error_squares,
            self.squares + other.squares,
        )


@dataclass(frozen=True)
class OutputError:
    """One row of a report: how far one output is from one reference's."""

    reference: str
    output: str
    difference: Difference
    tolerance: float
    by_rms: bool = False
    """Whether the tolerance is for the root mean square, not for the largest difference."""

    @property
    def measured(self) -> float:
        """What the tolerance is for."""
        return self.difference.relative_rms if self.by_rms else self.difference.relative

    @property
    def ok(self) -> bool:
        """Whether the relative difference is within the tolerance."""
        return self.measured <= self.tolerance


def differences_of_statistics(found: Statistics, logits: Float32, temperature: Float32) -> dict[str, Difference]:
    """By output name. `logits` [R, B, Q, V] and `temperature` [R] are the reference's, before the division.

    The difference of topk_ids is, at every rank, by how much the reference finds the id there less (or more) probable,
    in nats, than the one that it has at this rank itself: 0 for the same order, tiny where only a near-tie was decided
    otherwise. Log-probabilities and entropies, in nats too, have a magnitude of at least 1.
    """
    tempered = logits.astype(np.float64) / temperature.astype(np.float64)[:, None, None, None]
    shifted = tempered - tempered.max(axis=-1, keepdims=True)
    logprobs: Float64 = shifted - np.log(np.exp(shifted).sum(axis=-1, keepdims=True))
    best = -np.sort(-logprobs, axis=-1)[..., :TOP_K]
    entropy = -(np.exp(logprobs) * logprobs).sum(axis=-1)
    differences = {
        contract.TOPK_IDS: _difference_of_order(found.topk_ids, logprobs, best),
        contract.TOPK_LOGPROBS: difference_of(found.topk_logprobs, best, least_magnitude=1.0),
        contract.ENTROPY: difference_of(found.entropy, entropy, least_magnitude=1.0),
    }
    if found.logits is not None:
        differences[contract.LOGITS] = difference_of(found.logits, logits)
    return differences


def difference_of(found: Floats, expected: Floats, *, least_magnitude: float = _MIN_MAGNITUDE) -> Difference:
    """Between two arrays of any one shape."""
    magnitude = max(float(np.abs(expected).max()), least_magnitude)
    exact = expected.astype(np.float64)
    squares = max(float(np.square(exact).sum()), exact.size * least_magnitude**2)
    if found.shape != expected.shape:
        return Difference(math.inf, magnitude, math.inf, squares)
    with np.errstate(invalid="ignore"):  # infinite minus infinite, which counts as different
        errors = np.abs(found.astype(np.float64) - exact)
    if not np.isfinite(errors).all():
        return Difference(math.inf, magnitude, math.inf, squares)
    return Difference(float(errors.max()), magnitude, float(np.square(errors).sum()), squares)


def _difference_of_order(ids: Int64, logprobs: Float64, best: Float64) -> Difference:
    """`ids` and `best` [.., K], `logprobs` [.., V]; best first."""
    possible = ids.shape == best.shape and ids.min() >= 0 and ids.max() < logprobs.shape[-1]
    if not possible or (np.diff(np.sort(ids, axis=-1), axis=-1) == 0).any():
        return Difference(math.inf, 1.0, math.inf, float(best.size))
    return difference_of(np.take_along_axis(logprobs, ids, axis=-1), best, least_magnitude=1.0)
