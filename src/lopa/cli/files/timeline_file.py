"""The file of `generate --timeline`: work of the host and of a pipeline's stages, for Perfetto and Chrome."""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from lopa.runtime.contract.timeline import HOST, Span, Timeline, json_from_spans
from lopa.runtime.decoding.step import Step
from lopa.runtime.files.output_file import atomic_writer


class HostLane:
    """The host's lane in a timeline. Steps are numbered over all prompts, as a session numbers forwards."""

    def __init__(self, timeline: Timeline) -> None:
        self._timeline = timeline
        self._steps = 0

    def add(self, step: Step) -> None:
        """Add the phases of `step`, which must just have ended."""
        self._steps += 1
        began = time.perf_counter() - sum(step.seconds.values())
        for phase, seconds in step.seconds.items():
            self._timeline.add(Span(HOST, phase, self._steps, began, began + seconds))
            began += seconds


@contextmanager
def timeline_into(path: Path | None) -> Iterator[Timeline | None]:
    """Yield a timeline that is written to `path` when the block ends without an error; None without a path."""
    if path is None:
        yield None
        return
    with atomic_writer(path) as write:
        timeline = Timeline()
        yield timeline
        write(f"{json_from_spans(timeline.spans)}\n".encode())
