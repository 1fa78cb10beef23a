"""The file of `generate --timeline`: what the host and the stages of a pipeline did, for Perfetto and Chrome."""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from lopa.runtime.contract.timeline import HOST, Span, Timeline, json_from_spans
from lopa.runtime.decoding.decoding import Step
from lopa.runtime.files.output_file import whole_into


class HostLane:
    """Adds the phases of every step to a timeline; steps count on over all prompts, as a session counts forwards."""

    def __init__(self, timeline: Timeline) -> None:
        self._timeline = timeline
        self._steps = 0

    def add(self, step: Step) -> None:
        """To be called right after the step: its phases follow each other and have just ended."""
        self._steps += 1
        began = time.perf_counter() - sum(step.seconds.values())
        for phase, seconds in step.seconds.items():
            self._timeline.add(Span(HOST, phase, self._steps, began, began + seconds))
            began += seconds


@contextmanager
def timeline_into(path: Path | None) -> Iterator[Timeline | None]:
    """A timeline that is written to `path` when the block ends well, or None without one."""
    if path is None:
        yield None
        return
    with whole_into(path) as write:
        timeline = Timeline()
        yield timeline
        write(f"{json_from_spans(timeline.spans)}\n".encode())
