"""GPU report as Markdown: measurements, aims and missing parts."""

from collections.abc import Iterator

from lopa.bench.forward.work import ForwardShape
from lopa.bench.gpu.results import STAGES, ForwardResult, GpuResults, KernelsResult, SideRecord
from lopa.bench.table import MISSING, Table, markdown_from_table, ms_text, table_from_records
from lopa.export.weights.plan import Dtype

AIM_SHAPE = (4, 64)
"""Branches and window of the forward that the aims refer to."""
AIM_TIMES_FLOOR = 1.5
AIM_HOST_SHARE = 0.05
AIM_LAUNCHES = 300
AIMS_BUSY = {(4, 64, 512): 7.6e-3, (1, 32, 512): 5.9e-3, (8, 64, 512): 12.5e-3, (4, 64, 2048): 7.7e-3}
"""Seconds of GPU time of a forward by branches, window and prefix, for dream-7b in bfloat16 on an H100."""
ENGINE_PREFIX = "lopa "
"""Prefix of the names of lopa's engines. The other names belong to torch."""

_EXPLANATION = """\
The weights are random: times, memory and agreement are meaningful, texts are not. All sides alternate on the same
windows after the same prefix. Every window position is sampled. Times are medians of Session.forward after a warm-up of
each shape, including the transfer of the statistics to the host. torch eager and torch.compile run all branches in one
batch. torch.compile compiles each layer for each shape (default mode). The rest of the network is eager.

The floor is the minimum time of the forward, which reads every weight and cached row once. It uses the rates that
torch reaches on this device in the same run: a large product of the dtype, and a large copy or sum. No implementation
of the same network can be faster at these rates."""
_TOKENS = """\
Each engine runs the windows of `lopa-export verify` and commits the prefixes itself. The reference is the same network
in float32 (torch, no cache). A different most probable token is a near-tie if the reference ranks it below its own best
by at most the tolerance. Otherwise the position disagrees. torch eager in the same dtype shows the rounding."""
_STEPS = """\
A fixed number of LoPA steps with 4 branches on random prompts of 100 tokens, after a warm-up decode of the same prompt.
The step that computes the prompt does not count. The host's share is the median share of a step outside
Session.forward."""
_KERNELS = """\
Launches are kernels and copies. GPU time is the time in which at least one of them runs. Aims are for an H100."""
_OPENING = """\
Memory is the increase of the device's memory use: weights, and the peak of a forward of the largest shape."""


def markdown_from_results(results: GpuResults) -> str:
    """Return the whole report. A section without measurements has a note instead."""
    sections = [
        f"# GPU report: {results.likeness} with random weights on {results.machine.name}",
        "\n".join(_machine_lines(results)),
        _EXPLANATION,
        _section("Aims", list(_aim_lines(results))),
        _section("Programs", _table_lines(_program_table(results))),
        *(_section(f"Forward, {dtype}", _forward_lines(results, dtype)) for dtype in _dtypes(results)),
        _section("Tokens compared with float32", _table_lines(_token_table(results), _TOKENS)),
        _section("Steps", _table_lines(_step_table(results), _STEPS)),
        _section("Kernels", _table_lines(_kernel_table(results), _KERNELS)),
        _section("Longest kernels", _table_lines(_longest_table(results))),
        _section("Opening and memory", _table_lines(_opening_table(results), _OPENING)),
        _section("Stages", _table_lines(_stage_table(results))),
        _section("Missing parts", list(_missing_lines(results)) or ["None."]),
    ]
    return "\n\n".join(section.strip() for section in sections) + "\n"


def _section(title: str, lines: list[str]) -> str:
    return "\n".join([f"## {title}", "", *(lines or ["Not measured."])])


def _table_lines(table: Table, *explanation: str) -> list[str]:
    """Return the lines of a section, or nothing for a table without rows."""
    return [*explanation, "", markdown_from_table(table)] if table.rows else []


def _dtypes(results: GpuResults) -> list[Dtype]:
    return list(dict.fromkeys(run.dtype for run in results.stages if run.dtype is not None))


def _machine_lines(results: GpuResults) -> Iterator[str]:
    found = results.machine
    memory = "" if found.memory is None else f", {found.memory / 2**30:.0f} GiB"
    versions = ", ".join(f"{name} {version}" for name, version in found.machine.versions.items())
    driver = f"driver {found.driver or MISSING}; CUDA {found.cuda or MISSING}"
    yield f"- device: {found.device}: {found.name}{memory}; {driver}"
    yield f"- machine: {found.machine.cpu}, {found.machine.cores} cores, {found.machine.system}"
    yield f"- versions: {versions}"
    for command in results.commands:
        yield f"- run: `{command}`"


def _aim_lines(results: GpuResults) -> Iterator[str]:
    for each in results.forwards:
        if each.side.startswith(ENGINE_PREFIX) and (each.shape.branches, each.shape.window) == AIM_SHAPE:
            yield (
                f"- {each.dtype}, {each.side}, {shape_text(each.shape)}: {each.times_floor:.2f} x the floor; aim: "
                f"at most {AIM_TIMES_FLOOR}: {_met(each.times_floor <= AIM_TIMES_FLOOR)}"
            )
    for found in results.decodes:
        share = found.steps.host_share
        yield (
            f"- {found.dtype}, {found.side}: host's share of a step {share:.1%}; aim: below {AIM_HOST_SHARE:.0%}: "
            f"{_met(share < AIM_HOST_SHARE)}"
        )


def _met(met: bool) -> str:
    return "met" if met else "not met"


def _forward_lines(results: GpuResults, dtype: Dtype) -> list[str]:
    """Return a table of milliseconds and multiples of the floor, by shape and side."""
    found = {(each.side, each.shape): each for each in results.forwards if each.dtype == dtype}
    if not found:
        return []
    sides = list(dict.fromkeys(side for side, _ in found))
    floors = {shape: each.floor for (_, shape), each in found.items()}
    table = Table(
        title=f"Milliseconds of a forward, median of {results.rounds} (multiple of the floor)",
        columns=("branches x window, prefix", "floor", *sides),
        rows=tuple(
            (
                shape_text(shape),
                ms_text(floors.get(shape)),
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


def shape_text(shape: ForwardShape) -> str:
    """Return the branches, window and prefix."""
    return f"{shape.branches} x {shape.window}, {shape.prefix}"


def _time_text(found: ForwardResult | None) -> str:
    return MISSING if found is None else f"{ms_text(found.median)} ({found.times_floor:.2f})"


def _token_table(results: GpuResults) -> Table:
    return table_from_records(
        "Most probable tokens",
        results.checks,
        {
            "dtype, side": _side_text,
            "positions": lambda each: str(each.agreement.rows),
            "same": lambda each: f"{each.agreement.same / each.agreement.rows:.1%}",
            "near-ties": lambda each: str(each.agreement.near_ties),
            "disagree": lambda each: str(each.agreement.disagreements),
            "worst, nats": lambda each: f"{each.agreement.worst:.2g}",
            "tolerance": lambda each: f"{each.agreement.tolerance:g}",
        },
    )


def _step_table(results: GpuResults) -> Table:
    return table_from_records(
        "Decoding steps",
        results.decodes,
        {
            "dtype, side": _side_text,
            "steps": lambda each: str(each.steps.steps),
            "branches": lambda each: str(each.steps.branches),
            "step, ms": lambda each: ms_text(each.steps.median),
            "forward, ms": lambda each: ms_text(each.steps.forward_median),
            "steps per second": lambda each: f"{each.steps.steps_per_second:.1f}",
            "host share": lambda each: f"{each.steps.host_share:.1%}",
        },
    )


def _program_table(results: GpuResults) -> Table:
    return table_from_records(
        "Programs in their own processes",
        results.programs,
        {
            "program": lambda each: each.name,
            "exit code": lambda each: f"{each.code}" if each.passed else f"{each.code}, FAILED",
            "seconds": lambda each: f"{each.seconds:.1f}",
            "last line": lambda each: each.last,
        },
    )


def _kernel_aims(results: GpuResults, each: KernelsResult) -> str:
    aim, found = AIMS_BUSY.get((each.shape.branches, each.shape.window, each.shape.prefix)), each.kernels
    if aim is None or (results.likeness, each.dtype) != ("dream-7b", "bfloat16"):
        return MISSING
    launches = f"{AIM_LAUNCHES} launches: {_met(found.launches <= AIM_LAUNCHES)}"
    return f"{aim * 1e3:g} ms: {_met(found.busy <= aim)}; {launches}"


def _kernel_table(results: GpuResults) -> Table:
    return table_from_records(
        "Kernels of a forward",
        results.kernels,
        {
            "dtype, side, branches x window, prefix": lambda each: f"{_side_text(each)}, {shape_text(each.shape)}",
            "launches": lambda each: f"{each.kernels.launches:.0f}",
            "GPU time, ms": lambda each: ms_text(each.kernels.busy),
            "aims": lambda each: _kernel_aims(results, each),
        },
    )


def _longest_table(results: GpuResults) -> Table:
    return Table(
        "Longest kernels of a forward",
        ("dtype, side, branches x window, prefix", "ms", "launches", "kernel"),
        tuple(
            (f"{_side_text(each)}, {shape_text(each.shape)}", f"{seconds * 1e3:.3f}", f"{launches:.1f}", name[:100])
            for each in results.kernels
            for name, launches, seconds in each.kernels.longest
        ),
    )


def _opening_table(results: GpuResults) -> Table:
    return table_from_records(
        "Opening an engine",
        results.opened,
        {
            "dtype, side": _side_text,
            "seconds": lambda each: f"{each.seconds:.1f}",
            "device memory, GB": lambda each: f"{each.memory / 1e9:.2f}",
        },
    )


def _stage_table(results: GpuResults) -> Table:
    return table_from_records(
        "Last run of every stage",
        sorted(results.stages, key=lambda run: (STAGES.index(run.stage), run.dtype or "")),
        {
            "stage": lambda run: " ".join(filter(None, (run.stage, run.dtype))),
            "seconds": lambda run: f"{run.seconds:.1f}",
            "outcome": lambda run: run.note,
            "date": lambda run: run.date,
        },
    )


def _side_text(each: SideRecord) -> str:
    return f"{each.dtype}, {each.side}"


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
