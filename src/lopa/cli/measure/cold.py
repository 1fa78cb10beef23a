"""lopa-export bench --cold: from the import of the runtime to the first forward."""

from pathlib import Path

from lopa.bench.forward.cold_start import STARTS, measured_cold_start, report_from_starts, table_from_cold
from lopa.bench.progress import progress_shown
from lopa.bench.report import run_now
from lopa.cli.measure.report_output import ReportOutput, command_line
from lopa.cli.program.verbosity import quiet
from lopa.runtime.bundle import Bundle


def bench_cold(bundle: Path, *, output: ReportOutput, devices: tuple[str, ...], threads: int | None) -> None:
    """Seconds of STARTS fresh processes."""
    opened = Bundle.open(bundle)
    output.check("cold")
    run = run_now(opened, device=",".join(devices), threads=threads, arguments=command_line())
    starts = []
    with progress_shown("cold starts", STARTS, quiet=quiet()) as progress:
        for done in range(1, STARTS + 1):
            starts.append(measured_cold_start(opened.path, devices, threads))
            progress(done)
    report = report_from_starts(run, tuple(starts))
    output.put("cold", report, [table_from_cold(report)])
