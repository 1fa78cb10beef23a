"""Comparison of an engine's tokens with another device's, in decodes on both and in one forward per shape.

The results of the reference determine the next windows, so one different token does not change later forwards.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from lopa.export.progress import ProgressCallback, silent
from lopa.export.verify.cases import random_windows
from lopa.export.verify.differences import Difference, OutputError, difference_of, tolerance_of
from lopa.export.verify.paired_session import PairedSession
from lopa.runtime import contract
from lopa.runtime.bundle.manifest import Manifest
from lopa.runtime.contract import Int64, Statistics, WindowBatch
from lopa.runtime.contract.sizes import Sizes
from lopa.runtime.decoding.lopa_loop import LopaLoop
from lopa.runtime.errors import BadInputError
from lopa.runtime.options import DecodingParams
from lopa.runtime.requests.running_loop import RequestCache, RunningLoop
from lopa.runtime.sessions.sequential_session import SequentialSession
from lopa.runtime.sessions.session import Session, next_request_number
from lopa.runtime.tensorrt.tensorrt_library import is_tensorrt

Products = Literal["graph", "int8", "fp8"]
_STAGE = "comparing tokens"

# Nats by which the reference must prefer its token to the next one for the engine's token to count. The
# log-probabilities of both tokens, of several nats, may have the relative error of the statistics. For integers, the
# largest error of a single log-probability is several times the tolerated root mean square. fp8 has 4 significant bits,
# and int8 has up to 8. The value for fp8 is not measured.
MARGINS = {"float32": 1e-2, "float16": 2e-1, "bfloat16": 1.0, "int8": 1.0, "int4": 1.0, "fp8": 2.0}
_FP8_RMS = 2.5e-1


@dataclass(frozen=True)
class GateTolerance:
    """Limits for differences."""

    margin: float
    """Lead in nats of the reference's token below which a row is a near-tie, whose token may differ."""
    statistics: float
    """Relative tolerance of log-probabilities and entropies."""
    by_rms: bool
    """True if `statistics` limits the root mean square, not the largest difference."""


def gate_tolerance(manifest: Manifest, products: Products) -> GateTolerance:
    """Return the tolerance for an engine of the bundle whose weight products have the type `products`."""
    quantization = manifest.quantization
    kind = products if products != "graph" else manifest.dtype if quantization is None else quantization.kind
    if products == "fp8" and not manifest.is_fp8:  # the reference rounds nothing
        return GateTolerance(MARGINS[kind], _FP8_RMS, by_rms=True)
    tolerance = tolerance_of(manifest, kind)
    return GateTolerance(MARGINS[kind], tolerance.limit, tolerance.by_rms)


@dataclass(frozen=True)
class Agreement:
    """Result of a comparison."""

    forwards: int
    rows: int
    """Rows with statistics."""
    near_ties: int
    """Rows whose lead is at most the margin."""
    other_tokens: int
    """Rows beyond the margin for which the engine has another most probable token."""
    errors: tuple[OutputError, ...]

    @property
    def ok(self) -> bool:
        """True if all tokens except near-ties equal the reference's and all statistics are within tolerance.

        It is also False if all rows are near-ties.
        """
        compared = self.rows - self.near_ties
        return compared > 0 and self.other_tokens == 0 and all(error.ok for error in self.errors)


class Tally:
    """Sum of comparisons."""

    def __init__(self, tolerance: GateTolerance) -> None:
        self._tolerance = tolerance
        self._differences: dict[str, Difference] = {}
        self.forwards = self.rows = self.near_ties = self.other_tokens = 0

    def compare(self, expected: Statistics, found: Statistics) -> None:
        """Add one forward."""
        lead = expected.topk_logprobs[..., 0] - expected.topk_logprobs[..., 1]
        near = lead <= self._tolerance.margin
        other = np.not_equal(expected.topk_ids[..., 0], found.topk_ids[..., 0]) & ~near
        self.forwards += 1
        self.rows += lead.size
        self.near_ties += int(near.sum())
        self.other_tokens += int(other.sum())
        for name in (contract.TOPK_LOGPROBS, contract.ENTROPY):
            difference = difference_of(getattr(found, name), getattr(expected, name), least_magnitude=1.0)
            known = self._differences.get(name)
            self._differences[name] = difference if known is None else known.merged_with(difference)

    def agreement(self, reference: str) -> Agreement:
        """Return the result of all comparisons."""
        errors = tuple(
            OutputError(reference, name, difference, self._tolerance.statistics, by_rms=self._tolerance.by_rms)
            for name, difference in self._differences.items()
        )
        return Agreement(self.forwards, self.rows, self.near_ties, self.other_tokens, errors)


def agreement_of_sessions(
    reference: Session,
    candidate: Session,
    manifest: Manifest,
    prompts: Sequence[Int64],
    params: Sequence[DecodingParams],
    shapes: Sequence[Sizes],
    tolerance: GateTolerance,
    progress: ProgressCallback = silent,
) -> Agreement:
    """Decode every prompt with every parameters, then run random windows in each of `shapes`, on both sessions.

    `progress` receives the number of finished decodes and shapes.
    """
    tally = Tally(tolerance)
    pair = PairedSession(reference, candidate, tally.compare)
    work = [
        *((_decode, (prompt, params, manifest)) for params in params for prompt in prompts),
        *((_run_shape, (shape, max(each.window for each in shapes), manifest)) for shape in shapes),
    ]
    for number, (run, arguments) in enumerate(work):
        progress(_STAGE, number, len(work))
        run(pair, *arguments)  # type: ignore[operator]
    progress(_STAGE, len(work), len(work))
    return tally.agreement(reference.device)


def _decode(pair: PairedSession, prompt: Int64, params: DecodingParams, manifest: Manifest) -> None:
    running = RunningLoop(LopaLoop(params, manifest, prompt), RequestCache(pair))
    try:
        while running.loop.answer.stop_reason is None:
            running.step()
    finally:
        running.cache.release()


def _run_shape(paired: PairedSession, shape: Sizes, longest: int, manifest: Manifest) -> None:
    """Run one forward of random tokens with the sizes of `shape`, prefixes included."""
    pair = SequentialSession(paired)
    rng = np.random.default_rng(shape.prefix)
    requests = tuple(next_request_number() for _ in range(shape.requests))
    try:
        for request in requests:
            for batch in _windows_of_prefix(request, shape.prefix - 1, longest, manifest, rng):
                pair.forward(batch)
                pair.commit(request, 0, batch.input_ids.shape[2])
        sizes = (shape.branches, shape.window, shape.wanted)
        pair.forward(random_windows(requests, sizes, manifest.dimensions.vocab_size, rng, start=shape.prefix - 1))
    finally:
        for request in requests:
            pair.free(request)


def _windows_of_prefix(
    request: int, rows: int, longest: int, manifest: Manifest, rng: np.random.Generator
) -> Iterator[WindowBatch]:
    for start in range(0, rows, longest):
        width = min(longest, rows - start)
        yield random_windows((request,), (1, width, 1), manifest.dimensions.vocab_size, rng, start=start)


def check_reference(device: str, candidate: str) -> None:
    """Raise BadInputError if the reference device is also a TensorRT device, since both kinds share one compiler."""
    if is_tensorrt(device):
        raise BadInputError(
            f"--against {device} for --device {candidate}",
            expected="another kind of device, with a compiler of its own",
            remedy="use --against cpu, cuda:N or numpy",
        )
