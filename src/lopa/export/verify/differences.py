"""Differences between the outputs of an engine and of a reference.

The expected statistics are computed here in float64 from the reference's logits, independently of any engine.
"""

import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from lopa.runtime import contract
from lopa.runtime.bundle.manifest import Manifest
from lopa.runtime.contract import TOP_K, Float32, Floats, Int64, Statistics

Float64 = npt.NDArray[np.float64]

FLOAT16_SUMS = "float16 sums"
"""Kind of rounding of a provider that also adds up products in float16."""

# Largest relative difference by the bundle's type. float32 allows for another order of summation, float16 for the
# rounding of weights, cache and products. Measured with the tiny checkpoint over 20 seeds: at most 1.5e-5 and 2.4e-2,
# both of the entropy. bfloat16: 4.8e-2 with float32 products (numpy), 4.6e-2 for a float32 bundle with bfloat16
# products (OpenVINO). Sums in float16 (WebGPU, portable dialect, lavapipe): 9.4e-2.
TOLERANCES = {"float32": 1e-4, "float16": 3e-2, "bfloat16": 2e-1, FLOAT16_SUMS: 2e-1}
# Largest root mean square of the differences, relative to the reference's, for a bundle with integer matrices. Rounded
# activations make single numbers differ by far more, so the largest difference is not meaningful. Measured with the
# tiny checkpoint over 20 seeds: at most 6.4e-2 and 2.8e-2, both of the entropy. The tolerance is twice that. The
# references round the activations of FP8 bundles too: 4.3e-2 over 8 seeds, because a number near a tie may become the
# next one. Rounding to bfloat16 on the way, in numpy, makes differences 2.4 times as large.
RMS_TOLERANCES = {"int8": 1.2e-1, "int4": 6e-2, "fp8": 2e-1}
# The same for mixtures of experts whose numbers are rounded: a row with nearly equal scores may choose another expert,
# which changes it by far more than rounding does. Measured with three tiny checkpoints and two seeds on ONNX Runtime's
# CPU provider: at most 7.3e-2, 2.4e-1 and 2.2e-1. The tolerance is twice that; bfloat16 is not measured. FP8: 6.3e-2,
# again without bfloat16.
SPARSE_RMS_TOLERANCES = {"float16": 1.5e-1, "bfloat16": 5e-1, "int8": 5e-1, "int4": 4.5e-1, "fp8": 3e-1}
_MIN_MAGNITUDE = float(np.finfo(np.float32).tiny)


@dataclass(frozen=True)
class Tolerance:
    """Limit of the relative differences of an engine."""

    limit: float
    by_rms: bool
    """True if it limits the root mean square, not the largest difference."""


def tolerance_of(manifest: Manifest, kind: str | None = None) -> Tolerance:
    """Return the tolerance for an engine of the bundle that rounds to the type `kind`; None for the bundle's type."""
    if kind is None:
        kind = manifest.dtype if manifest.quantization is None else manifest.quantization.kind
    if manifest.dimensions.moe is not None and kind in SPARSE_RMS_TOLERANCES:
        return Tolerance(SPARSE_RMS_TOLERANCES[kind], by_rms=True)
    if kind in RMS_TOLERANCES:
        return Tolerance(RMS_TOLERANCES[kind], by_rms=True)
    return Tolerance(TOLERANCES[kind], by_rms=False)


@dataclass(frozen=True)
class Difference:
    """Difference between an output and a reference's, over any number of comparisons."""

    absolute: float
    """Largest absolute difference; infinite for a NaN, a wrong shape or an impossible id."""
    magnitude: float
    """Largest absolute value of the reference, with a lower bound."""
    error_squares: float
    """Sum of the squared differences; infinite if `absolute` is."""
    squares: float
    """Sum of the reference's squares, with a lower bound on their mean."""

    @property
    def relative(self) -> float:
        """Largest difference relative to `magnitude`."""
        return self.absolute / self.magnitude if self.absolute else 0.0

    @property
    def relative_rms(self) -> float:
        """Root mean square of the differences, relative to the reference's root mean square."""
        return math.sqrt(self.error_squares / self.squares) if self.error_squares else 0.0

    def merged_with(self, other: "Difference") -> "Difference":
        """Return the difference over both comparisons."""
        return Difference(
            max(self.absolute, other.absolute),
            max(self.magnitude, other.magnitude),
            self.error_squares + other.error_squares,
            self.squares + other.squares,
        )


@dataclass(frozen=True)
class OutputError:
    """One row of a report: the difference of one output from one reference's."""

    reference: str
    output: str
    difference: Difference
    tolerance: float
    by_rms: bool = False
    """True if the tolerance limits the root mean square, not the largest difference."""

    @property
    def measured(self) -> float:
        """Relative difference that the tolerance limits."""
        return self.difference.relative_rms if self.by_rms else self.difference.relative

    @property
    def ok(self) -> bool:
        """True if the relative difference is within the tolerance."""
        return self.measured <= self.tolerance


def differences_of_statistics(found: Statistics, logits: Float32, temperature: Float32) -> dict[str, Difference]:
    """Return the differences by output name. `logits` [R, B, Q, V] are the reference's, before `temperature` [R].

    At every rank, topk_ids differ by the absolute difference in log-probability, in nats, between the found id and the
    reference's own. This is 0 for the same order and tiny for near-ties. Log-probabilities and entropies, also in nats,
    have a magnitude of at least 1.
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
    """Return the difference between two arrays."""
    magnitude = max(float(np.abs(expected).max()), least_magnitude)
    exact = expected.astype(np.float64)
    squares = max(float(np.square(exact).sum()), exact.size * least_magnitude**2)
    if found.shape != expected.shape:
        return Difference(math.inf, magnitude, math.inf, squares)
    with np.errstate(invalid="ignore"):  # inf - inf, which counts as different
        errors = np.abs(found.astype(np.float64) - exact)
    if not np.isfinite(errors).all():
        return Difference(math.inf, magnitude, math.inf, squares)
    return Difference(float(errors.max()), magnitude, float(np.square(errors).sum()), squares)


def _difference_of_order(ids: Int64, logprobs: Float64, best: Float64) -> Difference:
    """Return the difference in the order of candidates.

    `ids` and `best` are [.., K], best first, and `logprobs` is [.., V].
    """
    possible = ids.shape == best.shape and ids.min() >= 0 and ids.max() < logprobs.shape[-1]
    if not possible or (np.diff(np.sort(ids, axis=-1), axis=-1) == 0).any():
        return Difference(math.inf, 1.0, math.inf, float(best.size))
    return difference_of(np.take_along_axis(logprobs, ids, axis=-1), best, least_magnitude=1.0)
