"""Messages from the user of chat, edited on a terminal or read as lines of standard input."""

import contextlib
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType

import click

from lopa.cli.program.standard_streams import lines_from_stdin
from lopa.runtime.decoding.step import Step
from lopa.runtime.errors import BadInputError

_PROMPT, _CONTINUATION_PROMPT = "> ", ". "
_CONTINUES = "\\"
"""End of a line whose message continues on the next line."""


class ChatInput:
    """Messages from standard input. `on_terminal` is True if a user sees prompts and notices."""

    def __init__(self) -> None:
        self.on_terminal = sys.stdin.isatty() and sys.stdout.isatty()
        if self.on_terminal:
            with contextlib.suppress(ImportError):
                import readline  # editing and a history in memory; nothing is written to disk

                readline.set_history_length(1000)

    def __iter__(self) -> Iterator[str]:
        """Yield messages until the end of input. Raises KeyboardInterrupt at the second Ctrl-C in a row."""
        return self._from_terminal() if self.on_terminal else _joined_lines(lines_from_stdin())

    def _from_terminal(self) -> Iterator[str]:
        interrupted = False
        while True:
            try:
                text = "\n".join(_parts_from_terminal())
            except EOFError:
                click.echo()
                return
            except UnicodeDecodeError:
                click.echo("the line is not UTF-8 text", err=True)
                continue
            except KeyboardInterrupt:
                click.echo()
                if interrupted:
                    raise
                interrupted = True
                click.echo("(Ctrl-C again, Ctrl-D or /quit ends)", err=True)
                continue
            interrupted = False
            yield text


def _parts_from_terminal() -> Iterator[str]:
    line = input(_PROMPT)
    while line.endswith(_CONTINUES):
        yield line.removesuffix(_CONTINUES)
        line = input(_CONTINUATION_PROMPT)
    yield line


def _joined_lines(lines: Iterator[str]) -> Iterator[str]:
    """Yield messages, with continued lines joined. Raises BadInputError if the input ends inside a message."""
    parts: list[str] = []
    for line in lines:
        parts.append(line.removesuffix(_CONTINUES))
        if not line.endswith(_CONTINUES):
            yield "\n".join(parts)
            parts = []
    if parts:
        raise BadInputError(
            "standard input ends with a \\", expected="another line after it", remedy="remove the last \\"
        )


class StoppedError(Exception):
    """The user pressed Ctrl-C during an answer."""


@contextmanager
def stoppable() -> Iterator[Callable[[Step], None]]:
    """Yield a callback for every step. After a Ctrl-C it raises StoppedError, while no device is computing.

    A second Ctrl-C before the end of the step raises KeyboardInterrupt at once.
    """
    received: list[int] = []

    def note(number: int, frame: FrameType | None) -> None:  # noqa: ARG001
        if received:
            raise KeyboardInterrupt
        received.append(number)

    def stop_if_interrupted(step: Step) -> None:  # noqa: ARG001
        if received:
            raise StoppedError

    with _handled_by(note):
        yield stop_if_interrupted


@contextmanager
def interrupts_as_exceptions() -> Iterator[None]:
    """Let Ctrl-C raise KeyboardInterrupt, so that it does not end the command at the prompt."""
    with _handled_by(signal.default_int_handler):
        yield


@contextmanager
def _handled_by(handler: Callable[[int, FrameType | None], None]) -> Iterator[None]:
    """Let Ctrl-C call `handler`. If Ctrl-C is ignored, as under nohup, it stays ignored."""
    before = signal.getsignal(signal.SIGINT)
    if before in (signal.SIG_IGN, None):
        yield
        return
    signal.signal(signal.SIGINT, handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
