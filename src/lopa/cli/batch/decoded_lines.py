"""The lines of a file of prompts decoded: every line is answered in order, written as soon as it is, and counted."""

import json
from collections import deque
from collections.abc import Callable, Iterator

from lopa.cli.batch.line_reader import LineReader, RequestLine
from lopa.cli.batch.progress import BatchProgress
from lopa.cli.batch.prompt_lines import RawLine
from lopa.runtime.decoding.decoding import Step
from lopa.runtime.errors import BadInputError
from lopa.runtime.text.prompt_ids import PromptRequest

Watch = Callable[[int], Callable[[Step], None]]
"""From the number of a request to what is told of its steps."""


def decode_lines(
    lines: Iterator[RawLine],
    reader: LineReader,
    write: Callable[[str], None],
    *,
    watch: Watch,
    parallel: int,
    progress: BatchProgress,
    source: str,
) -> None:
    """Answer `lines`, which come from `source`; a bad one with its error, which is also said.

    Raises what a device that fails gives, when the results before are written.
    """
    waiting: deque[RequestLine] = deque()
    numbers: dict[int, int] = {}
    """Of the lines that run, by their place among all that were asked for."""

    def requests() -> Iterator[PromptRequest | BadInputError]:
        for place, line in enumerate(lines):
            asked = reader.request_line(line)
            waiting.append(asked)
            numbers[place] = line.number
            yield asked.request

    def on_step(place: int, step: Step) -> None:
        watch(numbers[place])(step)
        progress.step()

    outcomes = reader.decoder.outcomes(requests(), reader.config, parallel=parallel, on_step=on_step)
    for place, outcome in enumerate(outcomes):
        asked = waiting.popleft()
        del numbers[place]
        if isinstance(outcome, BadInputError):
            progress.say(f"error: {source} line {asked.line.number}: {outcome}")
            answer = asked.answers.of_error(outcome)
        else:
            answer = asked.answers.of_result(outcome)
        write(json.dumps(answer, ensure_ascii=False))
        progress.add(outcome)
