"""Measurement of lopa's decoder and of the published loop in one process, with the same weights and threads.

Both sides run the reference mode through the same loop of lopa.runtime, so they make the same steps. Only the forward
differs: one ONNX Runtime call for all branches, or PyTorch eager calls per branch. lopa.bench.speed.eager_session
describes further costs of the published loop. The sides alternate prompt by prompt.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import torch

from lopa.bench.decoded_steps import result_with_steps
from lopa.bench.eval_set import EvalItem
from lopa.bench.progress import BenchProgress, silent
from lopa.bench.speed.eager_model import eager_model_from_checkpoint
from lopa.bench.speed.eager_session import EagerSession
from lopa.bench.speed.engine_clock import time_engine_calls
from lopa.bench.speed.speed_report import ROUNDS, SpeedFigures, StepTime, TimedDecode, measured_from_turns
from lopa.bench.turns import run_in_turns
from lopa.export.verify.origin import check_origin
from lopa.runtime.decoder import Decoder
from lopa.runtime.generation_config import GenerationConfig


def eager_decoder(decoder: Decoder, checkpoint: Path, lora: Path | None) -> Decoder:
    """Return a decoder of the same bundle whose session is the eager loop on the checkpoint's weights.

    Raises BadInputError for an unreadable checkpoint and a missing adapter, and CheckFailedError if the bundle was made
    from other files.
    """
    check_origin(decoder.bundle.manifest.origin, checkpoint, lora)
    model = eager_model_from_checkpoint(checkpoint, lora)
    return Decoder(decoder.bundle, EagerSession(model), decoder.tokenizer)


def measure_speed(
    ours: Decoder,
    eager: Decoder,
    items: Sequence[EvalItem],
    config: GenerationConfig,
    *,
    threads: int,
    progress: BenchProgress = silent,
) -> SpeedFigures:
    """Decode `items` on both sides in alternation, ROUNDS times. torch uses `threads` threads, like `ours`.

    `progress` receives the number of finished turns (a prompt on both sides).
    """
    with torch_threads(threads), time_engine_calls() as calls:
        # Warm-up: the first decode on each side allocates memory.
        _decode(ours, items[0], config, calls)
        _decode(eager, items[0], config, None)
        sides: dict[str, Callable[[int], TimedDecode]] = {
            "ours": lambda turn: _decode(ours, items[turn % len(items)], config, calls),
            "eager": lambda turn: _decode(eager, items[turn % len(items)], config, None),
        }
        found = run_in_turns(sides, ROUNDS * len(items), progress)
    turns = list(zip(found["ours"], found["eager"], strict=True))
    return measured_from_turns(turns, prompts=len(items), branches=ours.params(config).branches)


@contextmanager
def torch_threads(threads: int) -> Iterator[None]:
    """Return a context in which torch's operators use `threads` threads."""
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def _decode(decoder: Decoder, item: EvalItem, config: GenerationConfig, calls: list[float] | None) -> TimedDecode:
    """Decode one prompt on one side. `calls` receives the engine's seconds, or is None for the side without an
    engine."""
    if calls is not None:
        calls.clear()
    result, steps = result_with_steps(decoder, item.prompt, config)
    if calls is not None and len(calls) != len(steps):
        raise RuntimeError(f"received {len(calls)} engine calls in {len(steps)} steps, expected one call per step")
    seconds: Sequence[float | None] = [None] * len(steps) if calls is None else calls
    return TimedDecode(
        ids=result.token_ids,
        steps=tuple(
            StepTime(len(step.branches), sum(step.seconds.values()), step.seconds["forward"], call)
            for step, call in zip(steps, seconds, strict=True)
        ),
    )
