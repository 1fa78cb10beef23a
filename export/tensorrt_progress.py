"""What TensorRT tells while it builds: phases and steps to our Progress, errors and warnings kept for messages."""

import threading
from types import ModuleType
from typing import Any, Protocol

from lopa.export.progress import Progress

_KEPT = 20
"""Messages: TensorRT repeats itself, and the last say why it gave up."""


class Messages(Protocol):
    """An ILogger that keeps errors and warnings."""

    kept: list[str]
    """The last ones, in order."""


class Cancellable(Protocol):
    """An IProgressMonitor that can end a build."""

    def cancel(self) -> None:
        """End the build at its next step."""


def messages_logger(trt: ModuleType) -> Messages:
    """A logger of the module `trt`; may be called from any thread."""

    class _Messages(trt.ILogger):  # type: ignore[misc, name-defined]
        def __init__(self) -> None:
            trt.ILogger.__init__(self)
            self.kept: list[str] = []

        def log(self, severity: Any, msg: str) -> None:
            if severity in (trt.ILogger.INTERNAL_ERROR, trt.ILogger.ERROR, trt.ILogger.WARNING):
                self.kept = [*self.kept, msg][-_KEPT:]

    return _Messages()


def progress_monitor(trt: ModuleType, tell: Progress) -> Cancellable:
    """A monitor of the module `trt` that says how far the outermost phase is; called from TensorRT's threads."""

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
                tell(phase_name, 0, num_steps)

        def step_complete(self, phase_name: str, step: int) -> bool:
            if phase_name in self._steps:
                tell(phase_name, step + 1, self._steps[phase_name])
            return not self._cancelled.is_set()

        def phase_finish(self, phase_name: str) -> None:
            total = self._steps.pop(phase_name, None)
            if total is not None:
                tell(phase_name, total, total)

    return _Monitor()
