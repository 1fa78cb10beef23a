"""The tables of a scaling report."""

from lopa.bench.scaling.report import Measured, ScalingReport
from lopa.bench.table import Table


def tables_from_scaling(report: ScalingReport) -> list[Table]:
    """Measured steps, the model beside them, the engine's shares, and projections."""
    return [
        _split_table(report),
        _check_table(report),
        _share_table(report),
        _projected_table(report),
        _link_table(report),
    ]


def _split_table(report: ScalingReport) -> Table:
    tokens = "same tokens on all numbers of devices"
    if report.other_tokens:
        tokens = f"OTHER TOKENS for prompts {list(report.other_tokens)}, which are left out"
    missing = ""
    if report.not_measured:
        missing = f"; {_listed(report.not_measured)} devices are more than the cores here and projected only"
    return Table(
        title=f"Measured: milliseconds of a step, medians; {report.settings['branches']} branches, {report.decodes} "
        f"prompts of {report.steps} steps x {report.rounds} rounds in turns, one core a device, "
        f"{report.run.machine.cpu}; {tokens}{missing}",
        columns=("devices", "step", "engine", "gather", "select", "commit", "host", "tokens/s"),
        rows=tuple(
            (
                str(each.devices),
                *map(_ms, (each.step, each.parts.engine, each.parts.gather, each.parts.select, each.parts.commit)),
                _ms(each.parts.host),
                f"{each.tokens_per_second:.0f}",
            )
            for each in report.measured
        ),
    )


def _check_table(report: ScalingReport) -> Table:
    return Table(
        title="The model beside these runs: milliseconds of a step, medians; error = (model - measured) / measured",
        columns=(
            *("devices", "measured", "model", "its engine", "its gather", "error", "error of all steps' sum"),
            "error without the slowdown",
        ),
        rows=tuple(map(_check_row, report.measured)),
    )


def _check_row(each: Measured) -> tuple[str, ...]:
    errors = (each.error, each.error_of_total, each.error_without_slowdown)
    parts = (each.predicted, each.predicted_parts.engine, each.predicted_parts.gather)
    return (str(each.devices), _ms(each.step), *map(_ms, parts), *map(_percent, errors))


def _share_table(report: ScalingReport) -> Table:
    first = report.shares[0]
    return Table(
        title=f"The engine at what the fullest device gets of {first.branches} branches: milliseconds at window "
        f"{first.window}, prefix {first.prefix}, {first.wanted} rows wanted; together = all devices compute as many",
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
        "them down together",
        columns=("link", *(f"{count} device{'s' if count > 1 else ''}" for count in counts)),
        rows=tuple((link.name, *(f"{rates[link.name, count]:.0f}" for count in counts)) for link in report.links),
    )


def _link_table(report: ScalingReport) -> Table:
    return Table(
        title=f"The links; a committed row is {report.sizes.cache_row} bytes, the statistics of a wanted row are "
        f"{report.sizes.answer_row}",
        columns=("link", "latency, us", "GB/s", "source"),
        rows=tuple(
            (link.name, f"{link.latency * 1e6:.1f}", f"{link.bandwidth / 1e9:.1f}", link.source)
            for link in report.links
        ),
    )


def _ms(seconds: float) -> str:
    return f"{seconds * 1e3:.2f}"


def _percent(share: float) -> str:
    return f"{100 * share:+.1f} %"


def _listed(counts: tuple[int, ...]) -> str:
    return ", ".join(map(str, counts))
