"""The GPU report for readers: what was measured, which aims are met, and what is missing. Does not measure."""

from collections.abc import Iterator

from lopa.bench.forward.work import ForwardShape
from lopa.bench.gpu.results import STAGES, ForwardResult, GpuResults
from lopa.bench.table import Table, markdown_from_table
from lopa.export.weights.plan import Dtype

AIM_SHAPE = (4, 64)
"""Branches x window at which a forward is judged."""
AIM_TIMES_FLOOR = 1.5
AIM_HOST_SHARE = 0.05
ENGINE_PREFIX = "lopa "
"""How the names of our own sides begin; the others are torch's."""
_NONE = "-"

_EXPLANATION = """\
The weights are random, so texts mean nothing and only times, memory and agreement do. All sides get the same windows
behind the same prefix, in turns; every window row is wanted; times are medians of Session.forward, statistics on the
host included, and every side has run a shape before it is timed. torch eager and torch.compile run all branches in one
batch; torch.compile compiles each layer for each shape (default mode), the rest is eager.

The floor is what the forward must at least compute and move (every weight and cached row read once), at the rates that
torch reaches on this device in the same run: a large product of the dtype and a large copy or sum. Nothing that
computes the same network can be faster at these rates."""
_TOKENS = """\
Windows of `lopa-export verify`, prefixes committed by the engine itself, beside the same network in float32 (torch, no
cache). Where the most probable token is another one, it is a near-tie if float32 finds it less probable than its own
best by at most the tolerance; beyond that the row disagrees. torch eager in the same dtype shows what rounding does."""
_STEPS = """\
Random prompts of 100 tokens, a fixed number of LoPA steps on each, 4 branches, after a first decode of the same prompt;
the prompt's own step is not counted. The host's share is all of a step that is not Session.forward,
its median."""
_OPENING = """\
Memory is what the device has in use more than before: weights and the most that a forward of the largest shape
needed."""


def markdown_from_results(results: GpuResults) -> str:
    """The whole report; sections for which nothing was measured say so."""
    sections = [
        f"# GPU report: {results.likeness} with random weights on {results.machine.name}",
        "\n".join(_machine_lines(results)),
        _EXPLANATION,
        _section("Aims", list(_aim_lines(results))),
        *(_section(f"Forward, {dtype}", _forward_lines(results, dtype)) for dtype in _dtypes(results)),
        _section("Tokens beside float32", [_TOKENS, "", _token_table(results)] if results.checks else []),
        _section("Steps", [_STEPS, "", _step_table(results)] if results.decodes else []),
        _section("Opening and memory", [_OPENING, "", _opening_table(results)] if results.opened else []),
        _section("Stages", [_stage_table(results)] if results.stages else []),
        _section("Missing", list(_missing_lines(results)) or ["Nothing."]),
    ]
    return "\n\n".join(section.strip() for section in sections) + "\n"


def _section(title: str, lines: list[str]) -> str:
    return "\n".join([f"## {title}", "", *(lines or ["Not measured."])])


def _dtypes(results: GpuResults) -> list[Dtype]:
    return list(dict.fromkeys(run.dtype for run in results.stages if run.dtype is not None))


def _machine_lines(results: GpuResults) -> Iterator[str]:
    found = results.machine
    memory = "" if found.memory is None else f", {found.memory / 2**30:.0f} GiB"
    versions = ", ".join(f"{name} {version}" for name, version in found.machine.versions.items())
    yield f"- device: {found.device}: {found.name}{memory}; driver {found.driver or _NONE}; CUDA {found.cuda or _NONE}"
    yield f"- machine: {found.machine.cpu}, {found.machine.cores} cores, {found.machine.system}"
    yield f"- versions: {versions}"
    for command in results.commands:
        yield f"- run: `{command}`"


def _aim_lines(results: GpuResults) -> Iterator[str]:
    for each in results.forwards:
        if each.side.startswith(ENGINE_PREFIX) and (each.shape.branches, each.shape.window) == AIM_SHAPE:
            yield (
                f"- {each.dtype}, {each.side}, {_shape_text(each.shape)}: {each.times_floor:.2f} x the floor; aim at "
                f"most {AIM_TIMES_FLOOR}: {_met(each.times_floor <= AIM_TIMES_FLOOR)}"
            )
    for found in results.decodes:
        share = found.steps.host_share
        yield (
            f"- {found.dtype}, {found.side}: host's share of a step {share:.1%}; aim below {AIM_HOST_SHARE:.0%}: "
            f"{_met(share < AIM_HOST_SHARE)}"
        )


def _met(met: bool) -> str:
    return "met" if met else "not met"


def _forward_lines(results: GpuResults, dtype: Dtype) -> list[str]:
    """Milliseconds, and multiples of the floor, of every side at every shape that was asked for."""
    found = {(each.side, each.shape): each for each in results.forwards if each.dtype == dtype}
    if not found:
        return []
    sides = list(dict.fromkeys(side for side, _ in found))
    floors = {shape: each.floor for (_, shape), each in found.items()}
    table = Table(
        title=f"Milliseconds of a forward, medians of {results.rounds}, and in brackets the multiple of the floor",
        columns=("branches x window, prefix", "floor", *sides),
        rows=tuple(
            (
                _shape_text(shape),
                f"{floors[shape] * 1e3:.2f}" if shape in floors else _NONE,
                *(_time_text(found.get((side, shape))) for side in sides),
            )
            for shape in sorted(results.shapes, key=lambda shape: (shape.prefix, shape.branches, shape.window))
        ),
    )
    rates = [
        f"Measured rates: {each.rates.float32 / 1e12:.4g} TFLOP/s in {dtype}, {each.rates.bandwidth / 1e9:.4g} GB/s."
        for each in results.rates
        if each.dtype == dtype
    ]
    return [*rates, "", markdown_from_table(table)]


def _shape_text(shape: ForwardShape) -> str:
    return f"{shape.branches} x {shape.window}, {shape.prefix}"


def _time_text(found: ForwardResult | None) -> str:
    return _NONE if found is None else f"{found.median * 1e3:.2f} ({found.times_floor:.2f})"


def _token_table(results: GpuResults) -> str:
    return markdown_from_table(
        Table(
            title="Most probable tokens",
            columns=("dtype, side", "rows", "same", "near-ties", "disagree", "worst, nats", "tolerance"),
            rows=tuple(
                (
                    f"{each.dtype}, {each.side}",
                    str(each.agreement.rows),
                    f"{each.agreement.same / each.agreement.rows:.1%}",
                    str(each.agreement.near_ties),
                    str(each.agreement.disagreements),
                    f"{each.agreement.worst:.2g}",
                    f"{each.agreement.tolerance:g}",
                )
                for each in results.checks
            ),
        )
    )


def _step_table(results: GpuResults) -> str:
    return markdown_from_table(
        Table(
            title="Steps of decodes",
            columns=("dtype, side", "steps", "branches", "step, ms", "forward, ms", "steps per second", "host's share"),
            rows=tuple(
                (
                    f"{each.dtype}, {each.side}",
                    str(each.steps.steps),
                    str(each.steps.branches),
                    f"{each.steps.median * 1e3:.2f}",
                    f"{each.steps.forward_median * 1e3:.2f}",
                    f"{each.steps.steps_per_second:.1f}",
                    f"{each.steps.host_share:.1%}",
                )
                for each in results.decodes
            ),
        )
    )


def _opening_table(results: GpuResults) -> str:
    return markdown_from_table(
        Table(
            title="Opening an engine",
            columns=("dtype, side", "seconds", "device memory, GB"),
            rows=tuple(
                (f"{each.dtype}, {each.side}", f"{each.seconds:.1f}", f"{each.memory / 1e9:.2f}")
                for each in results.opened
            ),
        )
    )


def _stage_table(results: GpuResults) -> str:
    ordered = sorted(results.stages, key=lambda run: (STAGES.index(run.stage), run.dtype or ""))
    return markdown_from_table(
        Table(
            title="Seconds of every stage's last run",
            columns=("stage", "seconds", "outcome", "date"),
            rows=tuple(
                (" ".join(filter(None, (run.stage, run.dtype))), f"{run.seconds:.1f}", run.note, run.date)
                for run in ordered
            ),
        )
    )


def _missing_lines(results: GpuResults) -> Iterator[str]:
    ran = {run.stage for run in results.stages}
    for stage in STAGES:
        if stage not in ran:
            yield f"- stage {stage}: not run yet"
    for run in results.stages:
        if not run.finished:
            yield f"- stage {' '.join(filter(None, (run.stage, run.dtype)))}: {run.note}"
    for each in results.failures:
        what = ", ".join(filter(None, (each.stage, each.what)))
        yield f"- {each.dtype}, {each.side}, {what}: {each.reason}"
