"""Measurement of lopa's decoder and of the published loop in one process, with the same weights and threads.

Both sides run the reference mode through the same loop of lopa.runtime, so they make the same steps. Only the forward
differs: one ONNX Runtime call for all branches, or PyTorch eager calls per branch. lopa.bench.speed.eager_session
describes further costs of the published loop. The sides alternate prompt by prompt.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import torch

from lopa.bench.eval_set import EvalItem
from lopa.bench.progress import BenchProgress, silent
from lopa.bench.speed.eager_model import eager_model_from_checkpoint
from lopa.bench.speed.eager_session import EagerSession
from lopa.bench.speed.speed_report import ROUNDS, SpeedFigures, StepTime, TimedDecode, measured_from_turns
from lopa.bench.turns import result_with_steps, run_in_turns
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
    with torch_threads(threads):
        for decoder in (ours, eager):
            _decode(decoder, items[0], config)  # warm-up: allocates memory
        sides: dict[str, Callable[[int], TimedDecode]] = {
            name: partial(_decode_turn, decoder, items, config) for name, decoder in (("ours", ours), ("eager", eager))
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


def _decode_turn(decoder: Decoder, items: Sequence[EvalItem], config: GenerationConfig, turn: int) -> TimedDecode:
    return _decode(decoder, items[turn % len(items)], config)


def _decode(decoder: Decoder, item: EvalItem, config: GenerationConfig) -> TimedDecode:
    result, steps = result_with_steps(decoder, item.prompt, config)
    times = tuple(StepTime(len(step.branches), sum(step.seconds.values())) for step in steps)
    return TimedDecode(result.token_ids, times)
