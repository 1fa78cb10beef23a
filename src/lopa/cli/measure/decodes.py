"""lopa-export bench decodes: records the sizes of decodes with several numbers of branches, for bench simulate."""

from pathlib import Path

import click

from lopa.bench.fleet.decode_recording import record_decodes, table_of_decodes
from lopa.bench.fleet.decodes import text_of_decodes
from lopa.bench.progress import show_progress
from lopa.bench.report import check_output
from lopa.bench.table import show_table
from lopa.cli.options.devices import counts_from_text, device_options
from lopa.cli.program.grouped_command import GroupedCommand, option
from lopa.cli.program.verbosity import quiet
from lopa.runtime.decoder import Decoder
from lopa.runtime.files.output_file import write_atomically

NAME = "decodes.json"


@click.command(
    name="decodes",
    cls=GroupedCommand,
    examples=("lopa-export bench decodes BUNDLE --branches 1,2 --limit 1 -o REPORT",),
)
@click.argument("bundle", type=click.Path(path_type=Path))
@option("--branches", "counts", required=True, metavar="1,2,..", help="Numbers of branches to decode with.")
@option("--limit", type=click.IntRange(min=1), default=20, help="Maximum number of prompts of each kind.")
@option("-o", "--output", type=click.Path(path_type=Path), metavar="DIR", help=f"Folder for {NAME}.")
@device_options
def command(
    bundle: Path,
    counts: str,
    limit: int,
    output: Path | None,
    devices: tuple[str, ...],
    device_timeout: float,
    threads: int | None,
) -> None:
    """Decode the embedded prompts with BUNDLE one after another and record the sizes of every step.

    The subcommand simulate reads the file.
    """
    numbers = counts_from_text(counts, "--branches")
    with Decoder.open(bundle, devices, threads=threads, device_timeout=device_timeout) as decoder:
        for number in numbers:
            decoder.config(strategy="lopa", branches=number)  # bad numbers are rejected before anything is decoded
        if output is not None:
            check_output(output / NAME)
        with show_progress("prompts", limit, quiet=quiet()) as progress:
            decodes = record_decodes(decoder, numbers, limit=limit, progress=progress)
    if output is not None:
        write_atomically(output / NAME, text_of_decodes(decodes))
    show_table(table_of_decodes(decodes))
