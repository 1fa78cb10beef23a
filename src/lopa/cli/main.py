"""The command lopa-export: runs it, and turns whatever ends it into at most one message and an exit code.

Imports next to nothing before `main` runs, so that Ctrl-C is heard from the first line on; what the commands are is
known by lopa.cli.commands.
"""

from __future__ import annotations

import sys

TYPE_CHECKING = False  # typing itself takes longer to import than all of this
if TYPE_CHECKING:
    from typing import NoReturn

    from lopa.cli.program.signals import Signals

BAD_INPUT = 2
BUG = 70
"""The exit code of an error that nobody expected; EX_SOFTWARE of sysexits.h."""
INTERRUPTED = 130
CLOSED_PIPE = 141
"""As a shell has it for a process that SIGPIPE ended."""
_SHOWN = 300
"""Characters of what a library said."""


def main(arguments: list[str] | None = None) -> NoReturn:
    """Run lopa-export with `arguments`, None: those of this process, and exit with its code (see --help).

    Every error is one message on standard error; a traceback is shown for a bug only, with --verbose.
    """
    try:
        code = _code_of_process(arguments)
    except KeyboardInterrupt:  # before or after there was somebody to hear it
        _say("interrupted")
        code = INTERRUPTED
    sys.exit(code)


def _code_of_process(arguments: list[str] | None) -> int:
    from lopa.cli.program.signals import Signals

    signals = Signals()
    signals.end_at_once()
    try:
        code = _code_of_run(arguments, signals)
    except BaseException as error:
        signals.end_at_once()  # a second Ctrl-C need not wait for us
        code = _code_from_error(error, signals)
    code = _code_after_output(code)
    if arguments is None:
        signals.end_at_once()  # until the interpreter is gone
    else:
        signals.restore()
    return code


def _code_of_run(arguments: list[str] | None, signals: Signals) -> int:
    from lopa.cli.program.standard_streams import open_streams

    open_streams()
    import click
    from click.shell_completion import shell_complete

    from lopa.cli.commands import cli
    from lopa.cli.program.completing_shell import COMPLETE_VARIABLE, PROGRAM, completion_asked
    from lopa.cli.program.verbosity import forget_verbosity

    forget_verbosity()
    if arguments is None and (instruction := completion_asked()):
        return shell_complete(cli, {}, PROGRAM, COMPLETE_VARIABLE, instruction)
    try:
        # Not cli.main, which has exit codes of its own for a closed pipe and an end of input.
        with cli.make_context(PROGRAM, sys.argv[1:] if arguments is None else list(arguments), obj=signals) as context:
            return int(cli.invoke(context) or 0)
    except click.exceptions.Exit as done:
        return done.exit_code


def _code_from_error(error: BaseException, signals: Signals) -> int:
    """Say what ended the run; the exit code. A library that is not loaded has raised nothing, so none is imported."""
    from lopa.cli.program.signals import said_by_signal

    if signals.heard is not None:
        _say(said_by_signal(signals.heard))
        return 128 + signals.heard
    click, own = sys.modules.get("click"), sys.modules.get("lopa.runtime.errors")
    if own is not None and isinstance(error, own.LopaError):
        _say(f"error: {error}")
        return int(error.exit_code)
    if click is not None and isinstance(error, click.ClickException):
        _say_usage(error)
        return BAD_INPUT
    if isinstance(error, KeyboardInterrupt) or (click is not None and isinstance(error, click.Abort)):
        _say("interrupted")
        return INTERRUPTED
    if isinstance(error, BrokenPipeError) or isinstance(error.__context__, BrokenPipeError):
        return CLOSED_PIPE  # who read our output went away (| head); rich makes a SystemExit of it. Nobody can be told
    if isinstance(error, SystemExit) and isinstance(error.code, int):
        return error.code
    if isinstance(error, OSError):
        _say_refused_by_system(error)
        return BAD_INPUT
    if isinstance(error, MemoryError):
        _say_error(
            "memory ran out",
            "as much memory as the bundle, the cache and the window need",
            "lower --max-new-tokens, --branches or --parallel, or use a larger machine",
        )
        return BAD_INPUT
    _say_bug(error)
    return BUG


def _code_after_output(code: int) -> int:
    """The exit code once what was printed is out, or cannot get out."""
    from lopa.cli.program.standard_streams import drop_unwritten, failure_of_output

    failure = failure_of_output()
    drop_unwritten()
    if failure is None or code != 0:
        return code
    if isinstance(failure, BrokenPipeError):
        return CLOSED_PIPE
    _say_refused_by_system(failure, "standard output")
    return BAD_INPUT


def _say_refused_by_system(error: OSError, what: object = None) -> None:
    from lopa.cli.program.standard_streams import failure_of_output

    if what is None:
        what = error.filename
    if what is None:  # the system names no file when a write fails, and a buffer forgets that it did
        what = "standard output" if failure_of_output() is not None else "standard output, or a file that was open"
    said = error.strerror or str(error) or type(error).__name__
    _say_error(
        f"{what}: {said}",
        "files, folders and streams that can be read and written",
        "mend what the operating system says: the path, its rights, the room on the disk",
    )


def _say_bug(error: BaseException) -> None:
    verbosity = sys.modules.get("lopa.cli.program.verbosity")
    verbose = verbosity is not None and verbosity.verbose()
    if verbose:
        import traceback

        _say("".join(traceback.format_exception(error)).rstrip())
    _say_error(
        f"unexpected {type(error).__name__}: {' '.join(str(error).split())[:_SHOWN]}",
        "no such error whatever the input is: this is a bug of lopa-export",
        "report it with the lines above" if verbose else "run again with --verbose for where it arose, and report it",
    )


def _say_usage(error: BaseException) -> None:
    try:
        error.show(file=sys.stderr)  # type: ignore[attr-defined]
    except (OSError, ValueError):
        return  # as in _say


def _say_error(received: str, expected: str, remedy: str) -> None:
    _say(f"error: {received}\n  expected: {expected}\n  what to do: {remedy}")


def _say(text: str) -> None:
    try:
        print(text, file=sys.stderr, flush=True)
    except (OSError, ValueError):
        return  # nobody reads standard error


if __name__ == "__main__":
    main()
