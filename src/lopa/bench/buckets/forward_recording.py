"""Recorder of the planner's input: the sizes of all forwards, by request. No tokens are stored."""

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace

from lopa.bench.progress import BenchProgress
from lopa.bench.turns import result_with_steps
from lopa.runtime.bundle.buckets import ShapeSource
from lopa.runtime.contract import tiles
from lopa.runtime.contract.sizes import Sizes
from lopa.runtime.decoder import Decoder
from lopa.runtime.decoding.step import Step
from lopa.runtime.options import DEFAULT_BRANCHES, DecodingParams
from lopa.runtime.requests.request import Prompt

MAX_PADDING = 0.25
"""Maximum padding rows of a shared forward, as a share of the real rows. The engine uses the same limit."""


@dataclass(frozen=True)
class Recording:
    """Recorded requests with the parameters of their decodes."""

    requests: tuple[tuple[Sizes, ...], ...]
    """Forwards of each request, in order, as if decoded alone (R = 1)."""
    params: tuple[DecodingParams, ...]
    longest_prompt: int
    sources: tuple[ShapeSource, ...]


def sizes_of_step(step: Step) -> Sizes:
    """Return the sizes that the step's forward would have if its request ran alone."""
    rows = step.rows
    return Sizes(1, len(rows.sampled), max(rows.branch_lengths), tiles(rows.prefix), max(1, *rows.sampled_per_branch))


def recording_from_decoder(
    decoder: Decoder, prompts: Iterable[Prompt], source: Callable[[int], ShapeSource], progress: BenchProgress
) -> Recording:
    """Decode `prompts` with the bundle's defaults and, for LoPA, the default branches of accelerators.

    `source` returns the description of the prompts for a number of forwards. `progress` receives the number of finished
    prompts.
    """
    # Shape buckets are for accelerators, but any device can record.
    config = decoder.config()
    if decoder.params(config).strategy == "lopa":
        config = replace(config, branches=DEFAULT_BRANCHES)
    requests: list[tuple[Sizes, ...]] = []
    longest = 0
    for prompt in prompts:
        _, steps = result_with_steps(decoder, prompt, config)
        longest = max(longest, steps[0].branches[0].layout.prompt)
        requests.append(tuple(map(sizes_of_step, steps)))
        progress(len(requests))
    return Recording(tuple(requests), (decoder.params(config),), longest, (source(sum(map(len, requests))),))


def join_recordings(recordings: Sequence[Recording]) -> Recording:
    """Join several recordings, at least one."""
    return Recording(
        requests=tuple(request for each in recordings for request in each.requests),
        params=tuple(params for each in recordings for params in each.params),
        longest_prompt=max(each.longest_prompt for each in recordings),
        sources=tuple(source for each in recordings for source in each.sources),
    )


def forwards_of_recording(recording: Recording, max_num_seqs: int) -> Counter[Sizes]:
    """Return how often each shape runs with `max_num_seqs` concurrent requests.

    Requests start in order, each as soon as another ends. Every round runs the next forward of each
    running request. Requests, largest first, share a forward if that adds little padding.
    """
    waiting = iter(recording.requests)
    running: list[list[Sizes]] = []
    forwards: Counter[Sizes] = Counter()
    while True:
        while len(running) < max_num_seqs and (request := next(waiting, None)) is not None:
            if request:
                running.append(list(reversed(request)))
        if not running:
            return forwards
        for group in packed_sizes([request.pop() for request in running]):
            forwards[group] += 1
        running = [request for request in running if request]


def packed_sizes(alone: Sequence[Sizes]) -> list[Sizes]:
    """Return the shapes of the packed forwards of requests whose own shapes are `alone`."""
    groups: list[tuple[Sizes, int]] = []
    for sizes in sorted(alone, key=lambda each: each.rows, reverse=True):
        for number, (shape, real) in enumerate(groups):
            common = _common(shape, sizes)
            if common.rows <= (1 + MAX_PADDING) * (real + sizes.rows):
                groups[number] = (common, real + sizes.rows)
                break
        else:
            groups.append((sizes, sizes.rows))
    return [shape for shape, _ in groups]


def _common(shape: Sizes, sizes: Sizes) -> Sizes:
    """Return `shape` extended by a request with `sizes`."""
    return Sizes(
        shape.requests + sizes.requests,
        max(shape.branches, sizes.branches),
        max(shape.window, sizes.window),
        max(shape.prefix, sizes.prefix),
        max(shape.wanted, sizes.wanted),
    )
