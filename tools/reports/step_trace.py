"""Trace of one decoding step: calls, functions, files, and how often control passes between files.

Usage: python -m tools.measure step BUNDLE [--branches N] [--list]

The step lies between the third and the fourth forward of a decode on the reference device. Sessions, the contract and
the bundle are left out. The file runs on any commit since f64e9a4, as `python PATH/step_trace.py BUNDLE` in a checkout,
and here as `python -m tools.reports.step_trace` too.
"""

import os
import sys
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from types import FrameType
from typing import Any

import click

import lopa.runtime
from lopa import Decoder

_PROMPT = "Question: There are 9 baskets at home, and each holds 6 candies. How many candies are there now?\nAnswer:"
_LEFT_OUT = ("sessions", "contract", "bundle", "errors", "denormals")


def calls_of_step(bundle: Path, branches: int) -> list[tuple[str, str]]:
    """Return file and function of every call of the step, in order."""
    root = f"{Path(str(lopa.runtime.__file__)).resolve().parent}{os.sep}"
    calls: list[tuple[str, str]] = []
    forwards = 0

    def seen(frame: FrameType, event: str, _: object) -> None:
        path, function = str(Path(frame.f_code.co_filename).resolve()), frame.f_code.co_name
        name = path.removeprefix(root)
        if event == "call" and name != path and not function.startswith("<") and not name.startswith(_LEFT_OUT):
            calls.append((name, function))

    def between(inner: Callable[..., Any]) -> Callable[..., Any]:
        def forward(*arguments: Any) -> Any:
            nonlocal forwards
            sys.setprofile(None)
            statistics = inner(*arguments)
            forwards += 1
            if forwards == 3:
                sys.setprofile(seen)
            return statistics

        return forward

    with Decoder.open(bundle, devices=["numpy"]) as decoder:
        session: Any = decoder.session
        name = "wait" if hasattr(session, "wait") else "forward"
        setattr(session, name, between(getattr(session, name)))
        try:
            decoder.generate(_PROMPT, strategy="lopa", branches=branches, max_new_tokens=64)
        finally:
            sys.setprofile(None)
    return calls


@click.command
@click.argument("bundle", type=click.Path(path_type=Path))
@click.option("--branches", default=4, show_default=True, help="Branches of the decode.")
@click.option("--list", "lists", is_flag=True, help="Print every call; a line in column 0 is in another file.")
def main(bundle: Path, branches: int, lists: bool) -> None:
    """Count calls, functions, files and switches between files of one decoding step."""
    calls = calls_of_step(bundle, branches)
    files = [name for name, _ in calls]
    switches = sum(before != after for before, after in pairwise(files))
    click.echo(
        f"calls {len(calls)}, functions {len(set(calls))}, files {len(set(files))}, switches between files {switches}"
    )
    if lists:
        for number, (name, function) in enumerate(calls):
            same = number > 0 and files[number - 1] == name
            click.echo(f"{'    ' if same else ''}{name} {function}")


if __name__ == "__main__":
    main()
