"""Runs of benchmarks: several sides in turns, and one decode with a record of its steps."""

from collections.abc import Callable, Mapping
from typing import TypeVar

from lopa.bench.progress import BenchProgress, silent
from lopa.runtime.decoder import Decoder
from lopa.runtime.decoding.step import Step
from lopa.runtime.generation_config import GenerationConfig
from lopa.runtime.requests.request import Prompt
from lopa.runtime.requests.result import DoneEvent, GenerationResult


def result_with_steps(
    decoder: Decoder, prompt: Prompt, config: GenerationConfig
) -> tuple[GenerationResult, list[Step]]:
    """Return the result for `prompt` and all its decoding steps."""
    steps: list[Step] = []
    *_, last = decoder.stream(prompt, config, on_step=steps.append)
    assert isinstance(last, DoneEvent)
    return last.result, steps


Side = TypeVar("Side")
Result = TypeVar("Result")


def run_in_turns(
    sides: Mapping[Side, Callable[[int], Result]], turns: int, progress: BenchProgress = silent
) -> dict[Side, list[Result]]:
    """Run every side once per turn and return the results of each side.

    Alternation distributes slow phases of the machine over all sides. A side receives the turn's index, from 0.
    `progress` receives the number of finished turns.
    """
    found: dict[Side, list[Result]] = {side: [] for side in sides}
    for turn in range(turns):
        for side, run in sides.items():
            found[side].append(run(turn))
        progress(turn + 1)
    return found
