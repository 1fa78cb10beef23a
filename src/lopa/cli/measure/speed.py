"""lopa-export bench speed: compares the decoder with an eager PyTorch loop."""

from pathlib import Path

import click

from lopa.bench.eval_set import eval_set_from_jsonl
from lopa.bench.progress import show_progress
from lopa.bench.report import prompt_file, run_now
from lopa.bench.speed.speed_report import ROUNDS, SpeedReport, table_from_speed
from lopa.cli.measure.compared_strategies import check_masks
from lopa.cli.measure.report_output import ReportOutput, command_line, report_option
from lopa.cli.options.devices import device_option
from lopa.cli.program.grouped_command import DEVICE, GroupedCommand, option
from lopa.cli.program.verbosity import quiet
from lopa.export.extra import export_extra_needed
from lopa.export.source import source_from_checkpoint
from lopa.runtime.decoder import Decoder
from lopa.runtime.device_families import uses_all_cores
from lopa.tiny import EVAL


@click.command(
    name="speed",
    cls=GroupedCommand,
    examples=("lopa-export bench speed BUNDLE --checkpoint CHECKPOINT --lora ADAPTER --limit 1",),
)
@click.argument("bundle", type=click.Path(path_type=Path))
@option(
    "--checkpoint",
    required=True,
    type=click.Path(path_type=Path),
    metavar="DIR",
    help="Checkpoint that BUNDLE was exported from.",
)
@option("--lora", type=click.Path(path_type=Path), metavar="DIR", help="Adapter that BUNDLE was exported with.")
@option("--branches", type=int, default=5, help="Number of branches per step.")
@option("--limit", type=click.IntRange(min=1), default=8, help="Maximum number of prompts of each kind.")
@report_option
@device_option
@option(
    "--threads",
    type=click.IntRange(min=1),
    default=1,
    group=DEVICE,
    help="Number of threads of the decoder and of the loop.",
)
def command(
    bundle: Path,
    checkpoint: Path,
    lora: Path | None,
    branches: int,
    limit: int,
    output: Path | None,
    overwrite: bool,
    devices: tuple[str, ...],
    threads: int,
) -> None:
    """Compare seconds per step of BUNDLE with an eager PyTorch loop on the weights of its checkpoint.

    The loop runs on the CPU, so --device must be cpu or openvino:CPU.
    """
    if len(devices) != 1 or not uses_all_cores(devices[0]):
        raise click.UsageError("the eager loop runs on the CPU: omit --device, or give openvino:CPU")
    check_masks(bundle, "an eager loop")
    source_from_checkpoint(checkpoint, lora)  # bad input is rejected before torch is imported
    with export_extra_needed("the eager loop"):
        from lopa.bench.speed.speed_measurement import eager_decoder, measure_speed
    files = ReportOutput(output, replaces=overwrite)
    items = eval_set_from_jsonl(EVAL, limit=limit)
    with Decoder.open(bundle, devices, threads=threads) as ours:
        config = ours.config(strategy="lopa", reference=True, branches=branches)
        eager = eager_decoder(ours, checkpoint, lora)
        files.check("speed")
        run = run_now(ours.bundle, device=ours.session.device, threads=threads, arguments=command_line())
        with show_progress("prompts on both sides", ROUNDS * len(items), quiet=quiet()) as progress:
            measured = measure_speed(ours, eager, items, config, threads=threads, progress=progress)
    settings = dict(ours.resolve(config).options)
    report = SpeedReport("speed", run, prompt_file(EVAL, limit), settings, measured)
    files.write("speed", report, [table_from_speed(report)])
