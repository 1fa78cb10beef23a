"""Decodes prompts with several numbers of branches, each alone, and keeps the sizes of every step."""

from collections.abc import Sequence

from lopa.bench.decoded_steps import result_with_steps
from lopa.bench.eval_set import eval_set_from_jsonl
from lopa.bench.fleet.decodes import DECODES_SCHEMA, Decodes, RecordedDecode, RecordedStep
from lopa.bench.machine import date_now
from lopa.bench.progress import Progress, silent
from lopa.bench.table import Table
from lopa.runtime.decoder import Decoder
from lopa.runtime.decoding.decoding import Step
from lopa.runtime.generation_config import GenerationConfig
from lopa.tiny import EVAL


def recorded_decodes(decoder: Decoder, counts: Sequence[int], *, limit: int, progress: Progress = silent) -> Decodes:
    """The embedded prompts, `limit` of each kind, with every number of branches, by LoPA as the bundle has it else.

    `progress` hears how many prompts are done, and how many there are.
    """
    prompts = [item.prompt for item in eval_set_from_jsonl(EVAL, limit=limit)]
    configs = [decoder.config(strategy="lopa", branches=count) for count in counts]
    recorded = []
    for number, prompt in enumerate(prompts, start=1):
        recorded.append(tuple(_recorded(decoder, prompt, config) for config in configs))
        progress(number, len(prompts))
    return Decodes(
        schema=DECODES_SCHEMA,
        bundle=decoder.bundle.path.resolve().name,
        weights_sha256=decoder.bundle.manifest.weights_digest,
        recorded=date_now(),
        window=configs[0].window,
        max_new_tokens=configs[0].max_new_tokens,
        limit=limit,
        prompts=tuple(recorded),
    )


def table_of_decodes(decodes: Decodes) -> Table:
    """What each number of branches brings and computes."""
    return Table(
        f"{len(decodes.prompts)} prompts of {decodes.bundle}, each alone",
        ("branches", "tokens an answer", "steps", "tokens a step", "rows a step"),
        tuple(_row(decodes, count) for count in decodes.counts),
    )


def _row(decodes: Decodes, count: int) -> tuple[str, ...]:
    chosen = decodes.with_branches(count)
    steps = [step for each in chosen for step in each.steps]
    return (
        str(count),
        f"{sum(each.tokens for each in chosen) / len(chosen):.1f}",
        f"{len(steps) / len(chosen):.1f}",
        f"{decodes.tokens_a_step(count):.2f}",
        f"{sum(step.sequences * step.window for step in steps) / len(steps):.0f}",
    )


def _recorded(decoder: Decoder, prompt: str, config: GenerationConfig) -> RecordedDecode:
    result, steps = result_with_steps(decoder, prompt, config)
    first = steps[0].windows
    assert isinstance(config.branches, int)
    return RecordedDecode(
        branches=config.branches,
        prompt=len(result.prompt_ids),
        prompt_rows=first.commit,
        tokens=result.tokens,
        steps=tuple(map(_recorded_step, steps)),
    )


def _recorded_step(step: Step) -> RecordedStep:
    sequences, window = step.windows.forward_rows.input_ids.shape
    return RecordedStep(len(step.branches), sequences, window, step.windows.prefix)
