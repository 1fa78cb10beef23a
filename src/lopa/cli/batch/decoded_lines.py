"""Decoding of a file of prompts. Answers are written in order, each as soon as it is complete."""

import json
from collections import deque
from collections.abc import Callable, Iterator

from lopa.cli.batch.line_reader import LineReader, RequestLine
from lopa.cli.batch.progress import BatchProgress
from lopa.cli.batch.prompt_lines import RawLine
from lopa.runtime.decoding.decoding import Step
from lopa.runtime.errors import BadInputError
from lopa.runtime.text.prompt_ids import PromptRequest

StepCallbacks = Callable[[int], Callable[[Step], None]]
"""Function from the number of a request to the callback for its steps."""


def decode_lines(
    lines: Iterator[RawLine],
    reader: LineReader,
    write: Callable[[str], None],
    *,
    callbacks: StepCallbacks,
    parallel: int,
    progress: BatchProgress,
    source: str,
) -> None:
    """Answer `lines` of the file `source`. The answer to a bad line is its error, which is also printed.

    If a device fails, the results so far are written and its error is raised.
    """
    waiting: deque[RequestLine] = deque()
    numbers: dict[int, int] = {}
    """Line numbers of the running requests, by the position of the request."""

    def requests() -> Iterator[PromptRequest | BadInputError]:
        for position, line in enumerate(lines):
            read = reader.request_line(line)
            waiting.append(read)
            numbers[position] = line.number
            yield read.request

    def on_step(position: int, step: Step) -> None:
        callbacks(numbers[position])(step)
        progress.step()

    outcomes = reader.decoder.outcomes(requests(), reader.config, parallel=parallel, on_step=on_step)
    for position, outcome in enumerate(outcomes):
        read = waiting.popleft()
        del numbers[position]
        if isinstance(outcome, BadInputError):
            progress.print(f"error: {source} line {read.line.number}: {outcome}")
            answer = read.format.from_error(outcome)
        else:
            answer = read.format.from_result(outcome)
        write(json.dumps(answer, ensure_ascii=False))
        progress.add(outcome)
