"""What the user of a conversation types: edited on a terminal, a line each elsewhere."""

import contextlib
import sys
from collections.abc import Iterator

import click

from lopa.cli.program.standard_input import lines_from_stdin
from lopa.runtime.errors import BadInputError

_PROMPT, _MORE = "> ", ". "
_GOES_ON = "\\"
"""At the end of a line: the text goes on in the next one."""


class TypedLines:
    """Texts from standard input. `on_terminal` says whether somebody sits there and sees prompts."""

    def __init__(self) -> None:
        self.on_terminal = sys.stdin.isatty() and sys.stdout.isatty()
        if self.on_terminal:
            with contextlib.suppress(ImportError):
                import readline  # editing and a history in memory; nothing is written to disk

                readline.set_history_length(1000)

    def __iter__(self) -> Iterator[str]:
        """Until the end of input, or the second Ctrl-C in a row, which raises KeyboardInterrupt."""
        return self._from_terminal() if self.on_terminal else _whole(lines_from_stdin())

    def _from_terminal(self) -> Iterator[str]:
        interrupted = False
        while True:
            try:
                text = "\n".join(_parts_from_terminal())
            except EOFError:
                click.echo()
                return
            except UnicodeDecodeError:
                click.echo("that was not UTF-8 text", err=True)
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
    while line.endswith(_GOES_ON):
        yield line.removesuffix(_GOES_ON)
        line = input(_MORE)
    yield line


def _whole(lines: Iterator[str]) -> Iterator[str]:
    """Lines with those joined that go on. Raises BadInputError where the input ends in the middle of one."""
    parts: list[str] = []
    for line in lines:
        parts.append(line.removesuffix(_GOES_ON))
        if not line.endswith(_GOES_ON):
            yield "\n".join(parts)
            parts = []
    if parts:
        raise BadInputError(
            "standard input ends behind a \\", expected="another line behind it", remedy="remove the last \\"
        )
