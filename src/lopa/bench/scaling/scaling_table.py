"""Tables of a scaling report."""

from lopa.bench.scaling.scaling_report import ScalingReport
from lopa.bench.table import Table, ms_text, ratio_text, table_from_records


def tables_from_scaling(report: ScalingReport) -> list[Table]:
    """Return tables of the measured steps with the model's predictions, the engine's shares, and the projections."""
    return [_measured_table(report), _share_table(report), _projected_table(report)]


def _measured_table(report: ScalingReport) -> Table:
    tokens = "same tokens on all numbers of devices"
    if report.other_tokens:
        tokens = f"DIFFERENT TOKENS for prompts {list(report.other_tokens)}, which are excluded"
    missing = ""
    if report.not_measured:
        listed = ", ".join(map(str, report.not_measured))
        missing = f"; {listed} devices exceed the cores here and are projected only"
    single = report.measured[0].tokens_per_second
    return table_from_records(
        f"Measured: milliseconds per step, medians; {report.settings['branches']} branches, {report.decodes} "
        f"prompts of {report.steps} steps x {report.rounds} alternating rounds, one core per device, "
        f"{report.run.machine.cpu}; {tokens}{missing}; error = (model - step) / step",
        report.measured,
        {
            "devices": lambda each: str(each.devices),
            "step": lambda each: ms_text(each.step),
            "engine": lambda each: ms_text(each.parts.engine),
            "gather": lambda each: ms_text(each.parts.gather),
            "select": lambda each: ms_text(each.parts.select),
            "commit": lambda each: ms_text(each.parts.commit),
            "host": lambda each: ms_text(each.parts.host),
            "tokens/s": lambda each: f"{each.tokens_per_second:.0f}",
            "speed-up": lambda each: ratio_text(each.tokens_per_second, single),
            "model": lambda each: ms_text(each.predicted),
            "error": lambda each: f"{each.predicted / each.step - 1:+.1%}",
        },
    )


def _share_table(report: ScalingReport) -> Table:
    first = report.shares[0]
    return table_from_records(
        f"Engine time of the largest share of {first.branches} branches: milliseconds at window {first.window}, prefix "
        f"{first.prefix}, {first.wanted} sampled positions; together = all devices compute as many branches",
        report.shares,
        {
            "devices": lambda share: str(share.devices),
            "branches": lambda share: str(share.branches),
            "alone": lambda share: ms_text(share.alone),
            "together": lambda share: ms_text(share.together),
            "together / alone": lambda share: ratio_text(share.together, share.alone),
        },
    )


def _projected_table(report: ScalingReport) -> Table:
    counts = sorted({each.devices for each in report.projected})
    rates = {(each.link, each.devices): each.tokens_per_second for each in report.projected}
    return Table(
        title="PROJECTED: tokens per second of the same decodes on similar cores, by link; only shared memory slows "
        f"devices down; a committed row has {report.sizes.cache_row} bytes, the statistics of a sampled position "
        f"{report.sizes.answer_row}",
        columns=(
            *("link", "latency, us", "GB/s"),
            *(f"{count} device{'s' if count > 1 else ''}" for count in counts),
            "source of the figures",
        ),
        rows=tuple(
            (
                *(link.name, f"{link.latency * 1e6:.1f}", f"{link.bandwidth / 1e9:.1f}"),
                *(f"{rates[link.name, count]:.0f}" for count in counts),
                link.source,
            )
            for link in report.links
        ),
    )
