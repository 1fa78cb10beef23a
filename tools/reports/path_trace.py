"""Count the files and functions that one prompt passes through, and how often its options are resolved and checked.

Usage: python -m tools.measure path BUNDLE [--list]

It runs `lopa-export generate` in this process. What modules call while they are imported does not count. The same is
`python -m tools.reports.path_trace BUNDLE`. The file imports nothing of tools, so another checkout can run it.
"""

import contextlib
import io
import sys
import threading
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from types import FrameType
from typing import Any

import click

_PROMPT = "Question: Sam has 4 coins and finds 3 more. How many coins has Sam?\nAnswer:"
_NEW_LOCALS = 2
"""Flag of code objects of functions, which modules and class bodies lack."""
COUNTED = ("resolve", "params_from_options", "merged_options", "check_together", "check_defaults")
"""Names of functions whose calls are shown."""
Calls = Counter[tuple[str, str]]
"""Number of calls by file, relative to the package lopa, and function."""


@contextlib.contextmanager
def counted_calls(calls: Calls) -> Iterator[None]:
    """Count the calls of functions of lopa in the block, on all threads that start in it."""
    import lopa

    root = f"{Path(lopa.__file__).resolve().parent}/"

    def seen(frame: FrameType, event: str, _: Any) -> None:
        code = frame.f_code
        if event != "call" or not code.co_flags & _NEW_LOCALS or code.co_name.startswith("<"):
            return
        path = str(Path(code.co_filename).resolve())
        if path.startswith(root) and not _is_importing(frame):
            calls[path.removeprefix(root), code.co_name] += 1

    sys.setprofile(seen)
    threading.setprofile(seen)
    try:
        yield
    finally:
        sys.setprofile(None)
        threading.setprofile(None)


def _is_importing(frame: FrameType | None) -> bool:
    while frame is not None:
        if frame.f_code.co_filename == "<frozen importlib._bootstrap>":
            return True
        frame = frame.f_back
    return False


def calls_of_one_prompt(bundle: Path) -> Calls:
    """Return the calls of one `lopa-export generate`."""
    from lopa.cli.main import main as lopa_export

    calls: Calls = Counter()
    arguments = ["generate", str(bundle), _PROMPT, "--max-new-tokens", "32", "--device", "cpu"]
    with (
        counted_calls(calls),
        contextlib.redirect_stdout(io.StringIO()),
        contextlib.redirect_stderr(io.StringIO()),
        contextlib.suppress(SystemExit),
    ):
        lopa_export(arguments)
    return calls


@click.command(help=__doc__.partition("\n")[0])
@click.argument("bundle", type=click.Path(path_type=Path))
@click.option("--list", "show_files", is_flag=True, help="List the files.")
def main(bundle: Path, show_files: bool) -> None:
    """Print the counts."""
    calls = calls_of_one_prompt(bundle)
    files = sorted({path for path, _ in calls})
    click.echo(f"{len(files)} files, {len(calls)} functions")
    for name in COUNTED:
        count = sum(number for (path, function), number in calls.items() if function == name and "config" in path)
        click.echo(f"{name}: {count}")
    for path in files if show_files else ():
        click.echo(path)


if __name__ == "__main__":
    main()
