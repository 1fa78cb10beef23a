"""Progress bars on standard error while a `with` block runs, on a terminal only."""

import sys
from types import TracebackType
from typing import Self

from rich.console import Console
from rich.progress import Progress, ProgressColumn

from lopa.cli.program.verbosity import quiet


class ProgressBars:
    """Base class of progress displays. With --quiet they show neither bars nor lines."""

    def __init__(self, *columns: str | ProgressColumn, transient: bool = False) -> None:
        """Prepare the bars. With `transient` they are removed at the end."""
        self._console = Console(stderr=True, highlight=False, quiet=quiet())
        self._bars = self._new_bars(columns, transient) if self._console.is_terminal and not quiet() else None
        """The bars, or None without a terminal, where subclasses print lines instead."""

    def __enter__(self) -> Self:
        if self._bars is not None:
            try:
                self._bars.start()
            except BaseException:  # Ctrl-C: the cursor is hidden already
                self._bars.stop()
                raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._bars is not None:
            self._bars.stop()

    def _new_bars(self, columns: tuple[str | ProgressColumn, ...], transient: bool) -> Progress:
        """Return the bars. Standard output is printed above them on a terminal, and unchanged in a file or a pipe."""
        return Progress(*columns, console=self._console, redirect_stdout=sys.stdout.isatty(), transient=transient)
