"""lopa-export bench --devices: steps and tokens per second on several devices, measured and projected."""

from contextlib import ExitStack
from pathlib import Path

from lopa.bench.eval_set import eval_set_from_jsonl
from lopa.bench.figure import check_matplotlib
from lopa.bench.report import prompt_file
from lopa.bench.scaling.measure import decoders_on_cores
from lopa.bench.scaling.plot import png_from_scaling
from lopa.bench.scaling.report import scaling_report
from lopa.bench.scaling.table import tables_from_scaling
from lopa.cli.measure.report_output import ReportOutput, command_line
from lopa.cli.program.verbosity import quiet
from lopa.tiny import EVAL


def bench_scaling(
    bundle: Path, counts: tuple[int, ...], *, branches: int, limit: int, output: ReportOutput, device_timeout: float
) -> None:
    """Decodes on as many devices of one core each as this machine has, and a model's word on the others of `counts`."""
    if output.plot is not None:
        check_matplotlib()
    items = eval_set_from_jsonl(EVAL, limit=limit)
    with ExitStack() as opened:
        decoders = decoders_on_cores(opened, bundle, counts, device_timeout=device_timeout)
        # Its model deals branches; rows that they share are computed by each.
        config = decoders[1].config(strategy="lopa", branches=branches, deduplicate_rows=False)
        output.check("scaling")
        report = scaling_report(
            decoders, config, items, prompt_file(EVAL, limit), counts=counts, arguments=command_line(), quiet=quiet()
        )
    output.put("scaling", report, tables_from_scaling(report), png_from_scaling)
