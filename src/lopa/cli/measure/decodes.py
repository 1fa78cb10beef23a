"""lopa-export bench --decodes: what decodes with several numbers of branches compute, for lopa-export simulate."""

from pathlib import Path

from lopa.bench.fleet.decodes import text_of_decodes
from lopa.bench.fleet.recording import recorded_decodes, table_of_decodes
from lopa.bench.progress import progress_shown
from lopa.bench.report import check_output
from lopa.bench.table import show_table
from lopa.cli.program.verbosity import quiet
from lopa.runtime.decoder import Decoder
from lopa.runtime.files.output_file import write_whole

NAME = "decodes.json"


def bench_decodes(
    bundle: Path,
    counts: tuple[int, ...],
    *,
    limit: int,
    output: Path | None,
    devices: tuple[str, ...],
    device_timeout: float,
    threads: int | None,
) -> None:
    """Decode the embedded prompts, `limit` of each kind, one after another; the file goes to the folder `output`."""
    with Decoder.open(bundle, devices, threads=threads, device_timeout=device_timeout) as decoder:
        for count in counts:
            decoder.config(strategy="lopa", branches=count)  # refused before anything is decoded
        if output is not None:
            check_output(output / NAME)
        with progress_shown("prompts", limit, quiet=quiet()) as progress:
            decodes = recorded_decodes(decoder, counts, limit=limit, progress=progress)
    if output is not None:
        write_whole(output / NAME, text_of_decodes(decodes))
    show_table(table_of_decodes(decodes))
