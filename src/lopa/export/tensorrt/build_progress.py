"""Progress of TensorRT's builds, by phases and steps."""

import threading
from types import ModuleType
from typing import Protocol

from lopa.export.progress import ProgressCallback


class Cancellable(Protocol):
    """Protocol of an IProgressMonitor that can cancel a build."""

    def cancel(self) -> None:
        """End the build at its next step."""


def progress_monitor(trt: ModuleType, report: ProgressCallback) -> Cancellable:
    """Return a monitor of the module `trt` that reports outermost phases, from TensorRT's threads."""

    class _Monitor(trt.IProgressMonitor):  # type: ignore[misc, name-defined]
        def __init__(self) -> None:
            trt.IProgressMonitor.__init__(self)
            self._cancelled = threading.Event()
            self._steps: dict[str, int] = {}

        def cancel(self) -> None:
            self._cancelled.set()

        def phase_start(self, phase_name: str, parent_phase: str | None, num_steps: int) -> None:
            if not parent_phase:
                self._steps[phase_name] = num_steps
                report(phase_name, 0, num_steps)

        def step_complete(self, phase_name: str, step: int) -> bool:
            if phase_name in self._steps:
                report(phase_name, step + 1, self._steps[phase_name])
            return not self._cancelled.is_set()

        def phase_finish(self, phase_name: str) -> None:
            total = self._steps.pop(phase_name, None)
            if total is not None:
                report(phase_name, total, total)

    return _Monitor()
