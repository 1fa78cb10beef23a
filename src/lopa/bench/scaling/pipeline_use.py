"""How much of their time the stages of a pipeline work, from a timeline, and why they do not work all of it.

Pure; knows spans only.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from lopa.runtime.contract.timeline import HOST, Span, lanes_of_spans


@dataclass(frozen=True)
class PipelineUse:
    """Of the time inside forwards; what the host does between them is left out."""

    forwards: int
    seconds: float
    """Of all forwards, each from the first start of a stage to the last end."""
    busy: dict[str, float]
    """Seconds by stage."""
    filling: float
    """Share of the stages' time that passes while a pipeline of equal stages fills and drains."""

    @property
    def idle(self) -> float:
        """Share of the stages' time in which they do nothing, from 0 to 1."""
        return 1 - sum(self.busy.values()) / (len(self.busy) * self.seconds)


def use_from_spans(spans: Sequence[Span]) -> PipelineUse:
    """The use of all lanes but the host's. Raises ValueError when there are none.

    With S equal stages and M equal micro-batches a forward takes M + S - 1 turns, of which each stage works M: the rest
    is `filling`. What is idle beyond it comes of unequal stages and micro-batches, of handing over, and of cores that
    do something else.
    """
    stages = [lane for lane in lanes_of_spans(spans) if lane != HOST]
    if not stages:
        raise ValueError("received a timeline without stages, expected one of a pipeline")
    steps: dict[int, list[Span]] = {}
    for span in spans:
        if span.lane != HOST:
            steps.setdefault(span.step, []).append(span)
    seconds = filled = 0.0
    for work in steps.values():
        took = max(span.end for span in work) - min(span.start for span in work)
        pieces = len({span.work for span in work})
        seconds += took
        filled += took * (len(stages) - 1) / (pieces + len(stages) - 1)
    busy = {stage: sum(span.end - span.start for span in spans if span.lane == stage) for stage in stages}
    return PipelineUse(len(steps), seconds, busy, filled / seconds)
