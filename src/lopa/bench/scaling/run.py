"""From a bundle to a scaling report: decodes on the cores that are there, costs, the model and its projections."""

from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict
from pathlib import Path

from lopa.bench.eval_set import EvalItem
from lopa.bench.progress import progress_shown
from lopa.bench.report import PromptFile, run_now
from lopa.bench.scaling.links import PUBLISHED_LINKS, shared_memory_link
from lopa.bench.scaling.measure import (
    ROUNDS,
    SHARE_ROUNDS,
    measured_shares,
    measured_table,
    measured_turns,
    schedule_of_decodes,
    slowdowns_from_shares,
)
from lopa.bench.scaling.model import sizes_from_manifest
from lopa.bench.scaling.report import (
    ModelCosts,
    ScalingReport,
    commonest_full_shape,
    measured_scale,
    projected_scale,
    prompts_with_other_tokens,
    typical_decodes,
)
from lopa.runtime.decoder import Decoder
from lopa.runtime.errors import CheckFailedError
from lopa.runtime.generation_config import GenerationConfig
from lopa.runtime.sessions.onnxruntime_graph import available_cores


def decoders_on_cores(
    opened: ExitStack, path: Path, counts: Sequence[int], *, device_timeout: float
) -> dict[int, Decoder]:
    """The bundle at `path` opened on 1 device and on those of `counts` for which this machine has cores, by number.

    Each device is one core; `opened` closes the decoders. Raises as Decoder.open does.
    """
    cores = sorted(available_cores())
    return {
        count: opened.enter_context(
            Decoder.open(path, [f"cpu:{core}" for core in cores[:count]], device_timeout=device_timeout)
        )
        for count in sorted({1, *counts})
        if count <= len(cores)
    }


def scaling_report(
    decoders: Mapping[int, Decoder],
    config: GenerationConfig,
    items: Sequence[EvalItem],
    prompts: PromptFile,
    *,
    counts: Sequence[int],
    arguments: Sequence[str],
    quiet: bool = False,
) -> ScalingReport:
    """Measure the `decoders` of `decoders_on_cores`, project all `counts`; with `quiet` no progress is shown.

    Raises CheckFailedError when no prompt decodes the same on all of them.
    """
    one, counts, here = decoders[1], sorted({1, *counts}), sorted(decoders)
    run = run_now(one.bundle, device=decoders[here[-1]].session.device, threads=1, arguments=arguments)
    with progress_shown("prompts on every number of devices", ROUNDS * len(items), quiet=quiet) as progress:
        turns = measured_turns(decoders, items, config, progress)
    other = prompts_with_other_tokens(turns, len(items))
    if len(other) == len(items):
        raise CheckFailedError(
            f"{run.bundle} decodes every prompt otherwise on some of {', '.join(map(str, here))} devices",
            expected="the same tokens on every number of devices, for at least one prompt",
            remedy="report it, with the bundle's manifest.json; lopa-export verify checks the engine itself",
        )
    decodes = {count: typical_decodes(turns[count], len(items), other) for count in here}
    schedule = schedule_of_decodes(decodes[1], counts, one.bundle.manifest)
    with (
        progress_shown("forwards", schedule.forwards, quiet=quiet) as progress,
        Decoder.open(one.bundle.path, ["cpu"], threads=1) as plain,
    ):
        table = measured_table(plain, schedule, progress)
    with progress_shown("rounds of shares", SHARE_ROUNDS, quiet=quiet) as progress:
        shares = measured_shares(decoders, counts, commonest_full_shape(decodes[1]), progress)
    costs = ModelCosts(
        link=shared_memory_link(max(available_cores())),
        sizes=sizes_from_manifest(one.bundle.manifest),
        engine=table.seconds,
        slowdowns=slowdowns_from_shares(shares),
    )
    links = (costs.link, *PUBLISHED_LINKS)
    tokens = sum(len(turn.ids) for index, turn in enumerate(turns[1][: len(items)]) if index not in other)
    return ScalingReport(
        benchmark="scaling",
        run=run,
        prompts=prompts,
        settings=asdict(config),
        rounds=ROUNDS,
        decodes=len(decodes[1]),
        steps=sum(map(len, decodes[1])),
        other_tokens=other,
        not_measured=tuple(count for count in counts if count not in here),
        measured=tuple(measured_scale(count, decodes[count], decodes[1], costs, tokens) for count in here),
        shares=shares,
        links=links,
        sizes=costs.sizes,
        projected=tuple(projected_scale(decodes[1], counts, links, costs, tokens)),
    )
