"""Progress bars on standard error while a `with` block runs, on a terminal only. Knows no work."""

from types import TracebackType
from typing import Self

from rich.console import Console
from rich.progress import Progress, ProgressColumn


class ShownBars:
    """What shows the progress of different work has in common."""

    def __init__(self, *columns: str | ProgressColumn) -> None:
        self._console = Console(stderr=True, highlight=False)
        self._bars = Progress(*columns, console=self._console) if self._console.is_terminal else None
        """None elsewhere: then there are lines."""

    def __enter__(self) -> Self:
        if self._bars is not None:
            self._bars.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._bars is not None:
            self._bars.stop()
