"""The program lopa-export: runs a command, prints at most one error message, and returns an exit code.

It imports almost nothing before `main` runs, so that Ctrl-C is handled from the start. The commands are in
lopa.cli.commands.
"""

from __future__ import annotations

import os
import sys

TYPE_CHECKING = False  # importing typing takes longer than the rest of this module
if TYPE_CHECKING:
    from typing import NoReturn

    import click

    from lopa.cli.program.signals import Signals

BAD_INPUT = 2
BUG = 70
"""Exit code of an unexpected error: EX_SOFTWARE of sysexits.h."""
INTERRUPTED = 130
CLOSED_PIPE = 141
"""Exit code that a shell reports for a process ended by SIGPIPE."""
_MAX_SHOWN = 300
"""Maximum characters shown of a library's message."""


def main(arguments: list[str] | None = None) -> NoReturn:
    """Run lopa-export with `arguments`, or with this process's arguments if None, and exit with its code (see --help).

    Every error is one message on standard error. Only a bug shows a traceback, and only with --verbose.
    """
    try:
        code = _code_of_process(arguments)
    except KeyboardInterrupt:  # before the handlers were set, or after they were restored
        _report("interrupted")
        code = INTERRUPTED
    if arguments is None and _is_native_code_running():
        os._exit(code)  # a thread that returns to an exiting interpreter from ONNX Runtime aborts the process
    sys.exit(code)


def _is_native_code_running() -> bool:
    """Return whether a signal ended the wait for a call on another thread, such as the opening of a bundle."""
    background_call = sys.modules.get("lopa.cli.program.background_call")
    return background_call is not None and background_call.is_call_running()


def _code_of_process(arguments: list[str] | None) -> int:
    from lopa.cli.program.signals import Signals

    signals = Signals()
    signals.exit_immediately()
    try:
        code = _code_of_run(arguments, signals)
    except BaseException as error:
        signals.exit_immediately()  # a second Ctrl-C ends the process at once
        code = _code_from_error(error, signals)
    code = _code_after_output(code)
    if arguments is None:
        signals.exit_immediately()  # until the interpreter has exited
    else:
        signals.restore()
    return code


def _code_of_run(arguments: list[str] | None, signals: Signals) -> int:
    from lopa.cli.program.standard_streams import open_streams

    open_streams()
    import click
    from click.shell_completion import shell_complete

    from lopa.cli.commands import cli
    from lopa.cli.program.lazy_group import COMPLETE_VARIABLE, PROGRAM
    from lopa.cli.program.verbosity import forget_verbosity

    forget_verbosity()
    if arguments is None and (instruction := os.environ.get(COMPLETE_VARIABLE)):
        return shell_complete(cli, {}, PROGRAM, COMPLETE_VARIABLE, instruction)
    try:
        # cli.main is not used, since it has its own exit codes for a closed pipe and an end of input.
        with cli.make_context(PROGRAM, sys.argv[1:] if arguments is None else list(arguments), obj=signals) as context:
            return int(cli.invoke(context) or 0)
    except click.exceptions.Exit as done:
        return done.exit_code


def _code_from_error(error: BaseException, signals: Signals) -> int:
    """Report the error that ended the run and return the exit code.

    Only libraries that are already loaded can have raised it, so none is imported.
    """
    from lopa.cli.program.signals import message_of_signal

    if signals.received is not None:
        _report(message_of_signal(signals.received))
        return 128 + signals.received
    click, own = sys.modules.get("click"), sys.modules.get("lopa.runtime.errors")
    if own is not None and isinstance(error, own.LopaError):
        _report(f"error: {error}")
        return int(error.exit_code)
    if click is not None and isinstance(error, click.ClickException):
        _report_usage(error)
        return BAD_INPUT
    if isinstance(error, KeyboardInterrupt) or (click is not None and isinstance(error, click.Abort)):
        _report("interrupted")
        return INTERRUPTED
    if isinstance(error, BrokenPipeError) or isinstance(error.__context__, BrokenPipeError):
        return CLOSED_PIPE  # the reader closed the pipe (| head); rich turns this into a SystemExit
    if isinstance(error, SystemExit) and isinstance(error.code, int):
        return error.code
    if isinstance(error, OSError):
        _report_system_error(error)
        return BAD_INPUT
    if isinstance(error, MemoryError):
        _report_error(
            "memory ran out",
            "enough memory for the bundle, the cache and the window",
            "lower --max-new-tokens, --branches or --max-num-seqs, or use a larger machine",
        )
        return BAD_INPUT
    _report_bug(error)
    return BUG


def _code_after_output(code: int) -> int:
    """Return the exit code after flushing standard output."""
    from lopa.cli.program.standard_streams import drop_unwritten, failure_of_output

    failure = failure_of_output()
    drop_unwritten()
    if failure is None or code != 0:
        return code
    if isinstance(failure, BrokenPipeError):
        return CLOSED_PIPE
    _report_system_error(failure, "standard output")
    return BAD_INPUT


def _report_system_error(error: OSError, what: object = None) -> None:
    from lopa.cli.program.standard_streams import failure_of_output

    if what is None:
        what = error.filename
    if what is None:  # the system names no file when a write fails
        what = "standard output" if failure_of_output() is not None else "standard output or an open file"
    reason = error.strerror or str(error) or type(error).__name__
    _report_error(
        f"{what}: {reason}",
        "files, folders and streams that can be read and written",
        "check the path, its permissions and free disk space",
    )


def _report_bug(error: BaseException) -> None:
    verbosity = sys.modules.get("lopa.cli.program.verbosity")
    verbose = verbosity is not None and verbosity.verbose()
    if verbose:
        import traceback

        _report("".join(traceback.format_exception(error)).rstrip())
    _report_error(
        f"unexpected {type(error).__name__}: {' '.join(str(error).split())[:_MAX_SHOWN]}",
        "no such error for any input: this is a bug of lopa-export",
        "report it with the lines above" if verbose else "run again with --verbose and report the traceback",
    )


def _report_usage(error: click.ClickException) -> None:
    """Report an error of click in the form of our own. A command without its subcommand shows its help."""
    if nearest := getattr(error, "possibilities", None):
        del nearest[1:]
    message, context = error.format_message(), getattr(error, "ctx", None)
    if type(error).__name__ == "NoArgsIsHelpError":
        _report(message)
        return
    path = "lopa-export COMMAND" if context is None else context.command_path
    usage = f"{path} [OPTIONS]" if context is None else context.get_usage()
    flag = getattr(error, "param", None)
    several = "" if flag is None or not flag.multiple else f"; repeat {flag.opts[0]} for several values"
    received, _, hint = " ".join(message.split()).partition("Did you mean ")
    _report_error(
        received[:1].lower() + received[1:].rstrip(" (."),
        " ".join(usage.split()).removeprefix("Usage: "),
        f"did you mean {hint.rstrip(')')}" if hint else f"see {path} --help{several}",
    )


def _report_error(received: str, expected: str, remedy: str) -> None:
    _report(f"error: {received}\n  expected: {expected}\n  what to do: {remedy}")


def _report(text: str) -> None:
    try:
        print(text, file=sys.stderr, flush=True)
    except (OSError, ValueError):
        return  # standard error is closed or broken


if __name__ == "__main__":
    main()
