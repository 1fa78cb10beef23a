"""lopa-export fill: fills the holes of a text."""

from pathlib import Path
from typing import Any

import click

from lopa.cli.decode.answer_view import result_of_events, summary_of_result
from lopa.cli.options.decoding_options import DecodingCommand, checked_overrides, config_options
from lopa.cli.options.devices import device_options
from lopa.cli.program.grouped_command import OUTPUT, option
from lopa.cli.program.standard_streams import text_from_stdin
from lopa.cli.program.verbosity import quiet
from lopa.cli.terminal.opening import open_decoder
from lopa.runtime.text.text_with_holes import text_with_holes


@click.command(
    name="fill",
    cls=DecodingCommand,
    examples=(
        'lopa-export fill BUNDLE "4 + 5 = <hole:1>. The answer is <hole:1>."',
        'lopa-export fill BUNDLE "Together they have 6 + 3 = <hole:1> eggs." --drafts',
    ),
)
@click.argument("bundle", type=click.Path(path_type=Path))
@click.argument("text", required=False)
@option("--drafts", is_flag=True, group=OUTPUT, help="Show the holes after every step, with masked positions as ░.")
@device_options
@config_options
def command(
    bundle: Path,
    text: str | None,
    drafts: bool,
    devices: tuple[str, ...],
    device_timeout: float,
    threads: int | None,
    **values: Any,
) -> int:
    """Fill the holes of TEXT, or of standard input, and print the whole text.

    <hole:8> marks a hole of up to 8 tokens, and <hole:4-16> one of the most confident length. The model sees the text
    on both sides of it, and the given text stays as it is. All holes are filled together; with --block-size they are
    filled in blocks from left to right. The model has to attend to both sides: LLaDA, or Dream and DiffuCoder without a
    D2F adapter.
    """
    given = text_with_holes(text_from_stdin() if text is None else text)
    with open_decoder(bundle, devices, threads=threads, device_timeout=device_timeout) as decoder:
        events = decoder.stream(given, drafts=drafts, **checked_overrides(values, decoder.resolve))
        result = result_of_events(events, streams=False, drafts=drafts)
    click.echo(result.filled_text, nl=not (result.filled_text or "").endswith("\n"))
    if not quiet():
        click.echo(summary_of_result(result), err=True)
    return 0
