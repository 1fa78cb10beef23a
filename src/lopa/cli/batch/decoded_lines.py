"""Decoding of a file of prompts. Answers are written in order, each as soon as it is complete."""

import json
from collections import deque
from collections.abc import Callable, Iterator
from itertools import count

from lopa.cli.batch.line_reader import LineReader, RequestLine
from lopa.cli.batch.progress import BatchProgress
from lopa.cli.batch.prompt_lines import RawLine
from lopa.cli.files.step_log import StepCallbacks
from lopa.runtime.decoding.step import Step
from lopa.runtime.errors import REQUEST_ERRORS, LopaError
from lopa.runtime.requests.handle import RequestHandle
from lopa.runtime.requests.request import Request
from lopa.runtime.requests.result import GenerationResult


def decode_lines(
    lines: Iterator[RawLine],
    reader: LineReader,
    write: Callable[[str], None],
    *,
    callbacks: StepCallbacks,
    max_num_seqs: int,
    progress: BatchProgress,
    source: str,
) -> None:
    """Answer `lines` of the file `source`. The answer to a line that fails is its error, which is also printed.

    If a device fails, the results so far are written and its error is raised.
    """
    waiting: deque[RequestLine] = deque()
    numbers: dict[int, int] = {}
    """Line numbers of the running requests, by the position of the request."""

    def requests() -> Iterator[Request | LopaError]:
        positions = count()
        for line in lines:
            read = reader.request_line(line)
            waiting.append(read)
            for request in read.requests:
                numbers[next(positions)] = line.number
                yield request

    def on_step(position: int, step: Step) -> None:
        callbacks(numbers[position])(step)
        progress.step()

    ended: list[RequestHandle] = []
    for position, handle in enumerate(reader.decoder.handles(requests(), max_num_seqs=max_num_seqs, on_step=on_step)):
        del numbers[position]
        ended.append(handle)
        if len(ended) < len(waiting[0].requests):
            continue
        read = waiting.popleft()
        try:
            results: list[GenerationResult] = [each.result(0) for each in ended]
            answer = read.format.from_handles(ended)
            progress.add(results)
        except REQUEST_ERRORS as error:
            answer = read.format.from_error(error)
            progress.line(f"error: {source} line {read.line.number}: {error}")
            progress.add(error)
        ended = []
        write(json.dumps(answer, ensure_ascii=False))
