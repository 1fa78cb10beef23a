"""The tables of a scaling report."""

from lopa.bench.scaling.report import ScalingReport
from lopa.bench.table import Table

_PARTS = ("engine", "gather", "select", "commit", "host")


def tables_from_scaling(report: ScalingReport) -> list[Table]:
    """Return the measured steps with the model beside them, the engine's shares, and the projections by link."""
    return [_measured_table(report), _share_table(report), _projected_table(report)]


def _measured_table(report: ScalingReport) -> Table:
    tokens = "same tokens on all numbers of devices"
    if report.other_tokens:
        tokens = f"OTHER TOKENS for prompts {list(report.other_tokens)}, which are left out"
    missing = ""
    if report.not_measured:
        listed = ", ".join(map(str, report.not_measured))
        missing = f"; {listed} devices are more than the cores here and projected only"
    single = report.measured[0].tokens_per_second
    return Table(
        title=f"Measured: milliseconds of a step, medians; {report.settings['branches']} branches, {report.decodes} "
        f"prompts of {report.steps} steps x {report.rounds} rounds in turns, one core a device, "
        f"{report.run.machine.cpu}; {tokens}{missing}; error = (model - step) / step",
        columns=("devices", "step", *_PARTS, "tokens/s", "speed-up", "model", "error"),
        rows=tuple(
            (
                str(each.devices),
                _ms(each.step),
                *(_ms(getattr(each.parts, part)) for part in _PARTS),
                f"{each.tokens_per_second:.0f}",
                f"{each.tokens_per_second / single:.2f}",
                _ms(each.predicted),
                f"{each.predicted / each.step - 1:+.1%}",
            )
            for each in report.measured
        ),
    )


def _share_table(report: ScalingReport) -> Table:
    first = report.shares[0]
    return Table(
        title=f"The engine at what the fullest device gets of {first.branches} branches: milliseconds at window "
        f"{first.window}, prefix {first.prefix}, {first.wanted} sampled rows; together = all devices compute as many",
        columns=("devices", "branches", "alone", "together", "together / alone"),
        rows=tuple(
            (
                str(share.devices),
                str(share.branches),
                _ms(share.alone),
                "-" if share.together is None else _ms(share.together),
                "-" if share.together is None else f"{share.together / share.alone:.2f}",
            )
            for share in report.shares
        ),
    )


def _projected_table(report: ScalingReport) -> Table:
    counts = sorted({each.devices for each in report.projected})
    rates = {(each.link, each.devices): each.tokens_per_second for each in report.projected}
    return Table(
        title="PROJECTED: tokens per second of the same decodes on cores like these, by link; only shared memory slows "
        f"them down together; a committed row is {report.sizes.cache_row} bytes, the statistics of a sampled row are "
        f"{report.sizes.answer_row}",
        columns=(
            *("link", "latency, us", "GB/s"),
            *(f"{count} device{'s' if count > 1 else ''}" for count in counts),
            "source of the link's figures",
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


def _ms(seconds: float) -> str:
    return f"{seconds * 1e3:.2f}"
