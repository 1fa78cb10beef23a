"""Our decoder beside the published way to run a step, in one process, on the same weights, at equal threads.

Both sides run the published behaviour through the same loop of lopa.runtime, so that they make the same steps; what
differs is the forward: one ONNX Runtime call for all branches, or PyTorch eager calls branch after branch (see
lopa.bench.speed.eager_session for what the published loop does beside that). The sides take turns, prompt by prompt.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import torch

from lopa.bench.decoded_steps import result_with_steps
from lopa.bench.eval_set import EvalItem
from lopa.bench.progress import Progress, silent
from lopa.bench.speed.adapter_apart import put_adapter_apart
from lopa.bench.speed.eager_model import eager_model_from_weights, merged_weight
from lopa.bench.speed.eager_session import EagerSession
from lopa.bench.speed.engine_clock import engine_calls_timed
from lopa.bench.speed.report import ROUNDS, Decoded, Measured, StepTime, measured_from_turns
from lopa.bench.turns import in_turns
from lopa.export.source import source_from_checkpoint
from lopa.export.verify.origin import check_origin
from lopa.runtime.decoder import Decoder
from lopa.runtime.generation_config import GenerationConfig


def eager_decoder(decoder: Decoder, checkpoint: Path, lora: Path | None, *, adapter_apart: bool = False) -> Decoder:
    """Return a decoder of the same bundle whose session is the eager loop on the checkpoint's weights.

    Its adapter is merged, or apart beside the matrices that it changes. Raises BadInputError for a checkpoint that
    cannot be read, a missing adapter, and one that cannot be apart; raises CheckFailedError for files from which the
    bundle was not made.
    """
    source = source_from_checkpoint(checkpoint, lora)
    check_origin(decoder.bundle.manifest.origin, checkpoint, lora)
    weights = {each.name: merged_weight(source, each, "cpu") for each in source.planned}
    model = eager_model_from_weights(source, weights, "cpu")
    if adapter_apart:
        put_adapter_apart(model, source)
    return Decoder(decoder.bundle, EagerSession(model), decoder.tokenizer)


def measured_speed(
    ours: Decoder,
    eager: Decoder,
    items: Sequence[EvalItem],
    config: GenerationConfig,
    *,
    threads: int,
    progress: Progress = silent,
) -> Measured:
    """Decode `items` on both sides in turns, ROUNDS times; torch runs on `threads` threads, as `ours` was opened.

    `progress` hears how many turns (a prompt on both sides) are done.
    """
    with torch_threads(threads), engine_calls_timed() as calls:
        # The first decode on each side pays for memory that all others find ready.
        _decoded(ours, items[0], config, calls)
        _decoded(eager, items[0], config, None)
        sides: dict[str, Callable[[int], Decoded]] = {
            "ours": lambda turn: _decoded(ours, items[turn % len(items)], config, calls),
            "eager": lambda turn: _decoded(eager, items[turn % len(items)], config, None),
        }
        found = in_turns(sides, ROUNDS * len(items), progress)
    turns = list(zip(found["ours"], found["eager"], strict=True))
    return measured_from_turns(turns, prompts=len(items), branches=ours.plan(config).branches)


@contextmanager
def torch_threads(threads: int) -> Iterator[None]:
    """Torch's operators run on `threads` threads while the context lasts."""
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def _decoded(decoder: Decoder, item: EvalItem, config: GenerationConfig, calls: list[float] | None) -> Decoded:
    """One prompt on one side; `calls` is where the engine's clock writes, None for the side without an engine."""
    if calls is not None:
        calls.clear()
    result, steps = result_with_steps(decoder, item.prompt, config)
    if calls is not None and len(calls) != len(steps):
        raise RuntimeError(f"received {len(calls)} engine calls in {len(steps)} steps, expected one call a step")
    seconds: Sequence[float | None] = [None] * len(steps) if calls is None else calls
    return Decoded(
        ids=result.token_ids,
        steps=tuple(
            StepTime(len(step.branches), sum(step.seconds.values()), step.seconds["forward"], call)
            for step, call in zip(steps, seconds, strict=True)
        ),
    )
