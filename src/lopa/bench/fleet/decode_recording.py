"""Record the sizes of every step of prompts decoded alone with several numbers of branches."""

from collections.abc import Sequence

from lopa.bench.decoded_steps import result_with_steps
from lopa.bench.eval_set import eval_set_from_jsonl
from lopa.bench.fleet.decodes import DECODES_SCHEMA, Decodes, DecodeStep, RecordedDecode
from lopa.bench.machine import date_now
from lopa.bench.progress import BenchProgress, silent
from lopa.bench.table import Table
from lopa.runtime.decoder import Decoder
from lopa.runtime.decoding.step import Step
from lopa.runtime.generation_config import GenerationConfig
from lopa.tiny import EVAL


def record_decodes(decoder: Decoder, counts: Sequence[int], *, limit: int, progress: BenchProgress = silent) -> Decodes:
    """Decode the embedded prompts, `limit` of each kind, with strategy `lopa` and every number of branches.

    Other options are the bundle's defaults. `progress` receives the finished and the total number of prompts.
    """
    prompts = [item.prompt for item in eval_set_from_jsonl(EVAL, limit=limit)]
    configs = [decoder.config(strategy="lopa", branches=count) for count in counts]
    params = decoder.params(configs[0])
    recorded = []
    for number, prompt in enumerate(prompts, start=1):
        recorded.append(tuple(_record_decode(decoder, prompt, config) for config in configs))
        progress(number, len(prompts))
    return Decodes(
        schema=DECODES_SCHEMA,
        bundle=decoder.bundle.path.resolve().name,
        weights_sha256=decoder.bundle.manifest.weights_digest,
        recorded=date_now(),
        attention=params.attention,
        max_new_tokens=params.max_new_tokens,
        limit=limit,
        prompts=tuple(recorded),
    )


def table_of_decodes(decodes: Decodes) -> Table:
    """Return a table of tokens and rows for each number of branches."""
    return Table(
        f"{len(decodes.prompts)} prompts of {decodes.bundle}, decoded alone",
        ("branches", "tokens/answer", "steps/answer", "tokens/step", "rows/step"),
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


def _record_decode(decoder: Decoder, prompt: str, config: GenerationConfig) -> RecordedDecode:
    result, steps = result_with_steps(decoder, prompt, config)
    first = steps[0].rows
    return RecordedDecode(
        branches=result.params.branches,
        prompt=len(result.prompt_ids),
        prompt_rows=first.commit,
        tokens=result.tokens,
        steps=tuple(map(_record_step, steps)),
    )


def _record_step(step: Step) -> DecodeStep:
    lengths = step.rows.lengths
    return DecodeStep(len(step.branches), len(lengths), max(lengths), step.rows.prefix)
