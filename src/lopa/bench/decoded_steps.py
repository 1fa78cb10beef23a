"""Decode of one prompt with a record of its steps."""

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
