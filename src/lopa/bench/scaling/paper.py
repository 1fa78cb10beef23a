"""LoPA's published throughput beside a step-time model: the same replay as for our own decodes, with stated constants.

All published figures are of the paper, arXiv 2512.16229v2 (22 December 2025), for D2F-Dream-7B in bfloat16 on H200s,
one sample at a time. Knows nothing of this machine.
"""

import math
from dataclasses import dataclass, replace

from lopa.bench.forward.work import ForwardShape
from lopa.bench.scaling.links import PUBLISHED_LINKS, Link
from lopa.bench.scaling.model import MessageSizes, RecordedStep, StepParts, steps_on_devices

PARAMETERS = 7.6e9
"""Dream-7B has the layout of Qwen2.5-7B (7.61 billion parameters, its model card)."""
WEIGHT_BYTES = 2 * PARAMETERS
"""bfloat16, as published."""
MEMORY_BANDWIDTH = 4.8e12
"""Bytes per second, H200 (NVIDIA's data sheet)."""
FLOPS = 989e12
"""bfloat16 operations per second, dense, H200 (NVIDIA's data sheet: 1,979 with sparsity)."""
WINDOW = 96
"""Rows. ASSUMED: three open blocks of the published block size, 32."""
SIZES = MessageSizes(cache_row=2 * 28 * 4 * 128 * 2, answer_row=152_064 * 2)
"""28 layers of 4 key-value heads of 128; LoPA-Dist-NV returns whole rows of logits in bfloat16 (its published code)."""


@dataclass(frozen=True)
class PublishedPoint:
    """One configuration as published."""

    model: str
    task: str
    setting: str
    """Where in the paper: tables 3 and 7, and the names of table 4."""
    devices: int
    """Branches: each device computes one."""
    tokens_per_second: float
    tokens_per_forward: float | None
    """None where only a curve shows it."""


PUBLISHED = (
    PublishedPoint("Base", "MBPP", "D2F, table 7", 1, 327.69, 5.64),
    PublishedPoint("Base", "MBPP", "S6", 4, 678.26, None),
    PublishedPoint("Base", "MBPP", "S12, table 3", 8, 708.48, 15.55),
    PublishedPoint("Base", "GSM8K", "D2F, table 7", 1, 224.33, 3.90),
    PublishedPoint("Base", "GSM8K", "S6", 4, 546.72, None),
    PublishedPoint("Base", "GSM8K", "S12, table 3", 8, 619.33, 13.16),
    PublishedPoint("Instruct", "MBPP", "D2F, table 7", 1, 206.37, 3.13),
    PublishedPoint("Instruct", "MBPP", "S6", 4, 615.95, None),
    PublishedPoint("Instruct", "MBPP", "S12, table 3", 8, 636.55, 9.52),
    PublishedPoint("Instruct", "GSM8K", "D2F, table 7", 1, 247.90, 4.01),
    PublishedPoint("Instruct", "GSM8K", "S6", 4, 568.75, None),
    PublishedPoint("Instruct", "GSM8K", "S12, table 3", 8, 609.90, 11.42),
)
"""S6 is BP4 and S12 is BP8, both with thresholds of 0.7 (table 6); the D2F rows have those of the peak throughput too
(caption of table 7)."""
FITTED = (PUBLISHED[0], PUBLISHED[2])
"""The two constants that are not published are fitted to these; all other points are predictions."""


@dataclass(frozen=True)
class PaperPoint:
    """A published point and what the model says."""

    published: PublishedPoint
    tokens_per_forward: float
    interpolated: bool
    """The tokens per forward are not published but lie on a line, over log2 of the branches, between those that are."""
    fitted: bool
    step_seconds: float
    tokens_per_second: float
    error: float
    """Of the tokens per second, as a share of the published ones."""


@dataclass(frozen=True)
class SpreadPoint:
    """8 branches on fewer or as many devices."""

    devices: int
    engine_seconds: float
    step_seconds: float
    tokens_per_second: float


@dataclass(frozen=True)
class PaperScaling:
    """The whole comparison."""

    host_seconds: float
    """Fitted: a step on one device beyond the forward's roofline."""
    message_seconds: float
    """Fitted: one way of a message of LoPA-Dist-NV, software included."""
    points: tuple[PaperPoint, ...]
    spread: tuple[SpreadPoint, ...]
    """Of the last fitted point's task."""


def paper_scaling() -> PaperScaling:
    """Fit the two constants, then predict every published point and 8 branches on 1, 2, 4 and 8 devices."""
    one, eight = FITTED
    host = _published_step(one) - roofline_seconds(_shape(1))
    nvlink = next(link for link in PUBLISHED_LINKS if link.name == "NVLink")
    ideal = _step(eight.devices, eight.devices, _tokens(eight)[0], host, replace(nvlink, latency=0.0)).seconds
    link = replace(nvlink, latency=(_published_step(eight) - ideal) / 2)
    spread = []
    for devices in (1, 2, 4, 8):
        step = _step(8, devices, _tokens(eight)[0], host, link)
        spread.append(SpreadPoint(devices, step.engine, step.seconds, _tokens(eight)[0] / step.seconds))
    return PaperScaling(host, link.latency, tuple(_point(each, host, link) for each in PUBLISHED), tuple(spread))


def roofline_seconds(shape: ForwardShape) -> float:
    """The least time of a forward on an H200: of reading the weights and of computing, whichever is longer."""
    rows = shape.branches * shape.window
    return max(WEIGHT_BYTES / MEMORY_BANDWIDTH, 2 * PARAMETERS * rows / FLOPS)


def _point(published: PublishedPoint, host: float, link: Link) -> PaperPoint:
    tokens, interpolated = _tokens(published)
    seconds = _step(published.devices, published.devices, tokens, host, link).seconds
    return PaperPoint(
        published=published,
        tokens_per_forward=tokens,
        interpolated=interpolated,
        fitted=published in FITTED,
        step_seconds=seconds,
        tokens_per_second=tokens / seconds,
        error=tokens / seconds / published.tokens_per_second - 1,
    )


def _published_step(point: PublishedPoint) -> float:
    """Seconds of a step: tokens a step over tokens a second."""
    return _tokens(point)[0] / point.tokens_per_second


def _tokens(point: PublishedPoint) -> tuple[float, bool]:
    """Tokens a forward brings, and whether they are interpolated."""
    if point.tokens_per_forward is not None:
        return point.tokens_per_forward, False
    known = {
        math.log2(other.devices): other.tokens_per_forward
        for other in PUBLISHED
        if (other.model, other.task) == (point.model, point.task) and other.tokens_per_forward is not None
    }
    (low, first), (high, last) = sorted(known.items())
    return first + (last - first) * (math.log2(point.devices) - low) / (high - low), True


def _step(branches: int, devices: int, tokens: float, host: float, link: Link) -> StepParts:
    """A step that also commits as many rows as it brings tokens, which is what steps do in the mean."""
    parts = StepParts(windows=0.0, engine=0.0, gather=0.0, select=0.0, commit=0.0, spawn=host)
    step = RecordedStep(_shape(branches), round(tokens), shared=False, parts=parts)
    return steps_on_devices([step, step], devices, link, SIZES, roofline_seconds)[-1]


def _shape(branches: int) -> ForwardShape:
    return ForwardShape(branches, WINDOW, prefix=1024, wanted=WINDOW)
