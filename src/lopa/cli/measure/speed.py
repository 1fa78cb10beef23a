"""lopa-export bench --speed: our decoder beside an eager loop of PyTorch."""

from pathlib import Path

from lopa.bench.eval_set import eval_set_from_jsonl
from lopa.bench.progress import progress_shown
from lopa.bench.report import prompt_file, run_now
from lopa.bench.speed.report import FORWARD_INCLUDES, ROUNDS, SpeedReport
from lopa.bench.speed.table import tables_from_speed
from lopa.cli.measure.report_output import ReportOutput, command_line
from lopa.cli.program.verbosity import quiet
from lopa.export.extra import export_extra_needed
from lopa.export.source import source_from_checkpoint
from lopa.runtime.decoder import Decoder
from lopa.tiny import EVAL


def bench_speed(
    bundle: Path,
    checkpoint: Path,
    lora: Path | None,
    *,
    adapter_apart: bool,
    branches: int,
    limit: int,
    output: ReportOutput,
    device: str,
    threads: int,
) -> None:
    """Seconds per step of `bundle` on `device` and of an eager loop on the checkpoint that it was made from.

    The loop runs on the processor, so `device` is to be the processor too.
    """
    source_from_checkpoint(checkpoint, lora)  # what cannot be used is refused before torch is imported
    with export_extra_needed("the eager loop"):
        from lopa.bench.speed.measure import eager_decoder, measured_speed
    items = eval_set_from_jsonl(EVAL, limit=limit)
    with Decoder.open(bundle, [device], threads=threads) as ours:
        config = ours.config(strategy="lopa", reference=True, branches=branches)
        eager = eager_decoder(ours, checkpoint, lora, adapter_apart=adapter_apart)
        output.check("speed")
        run = run_now(ours.bundle, device=ours.session.device, threads=threads, arguments=command_line())
        with progress_shown("prompts on both sides", ROUNDS * len(items), quiet=quiet()) as progress:
            measured = measured_speed(ours, eager, items, config, threads=threads, progress=progress)
    settings = dict(ours.bundle.manifest.merged_options(config))
    report = SpeedReport("speed", run, prompt_file(EVAL, limit), settings, adapter_apart, FORWARD_INCLUDES, measured)
    output.put("speed", report, tables_from_speed(report))
