"""The forwards of decodes, request by request: what buckets are planned from. Knows sizes only, no tokens."""

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace

from lopa.bench.decoded_steps import result_with_steps
from lopa.bench.progress import Progress
from lopa.runtime.bundle.buckets import Source
from lopa.runtime.contract import tiles
from lopa.runtime.contract.sizes import Sizes
from lopa.runtime.decoder import Decoder
from lopa.runtime.decoding.decoding import Step
from lopa.runtime.plan import DEFAULT_BRANCHES, DecodingPlan
from lopa.runtime.text.prompt_ids import Prompt

MAX_PADDING = 0.25
"""Padding rows that requests in one forward may cause, as a share of the real ones: as the engine packs them."""


@dataclass(frozen=True)
class Recording:
    """Decoded requests and what they were decoded with."""

    requests: tuple[tuple[Sizes, ...], ...]
    """The forwards of each request in order, each of that request alone (R = 1)."""
    plans: tuple[DecodingPlan, ...]
    longest_prompt: int
    sources: tuple[Source, ...]


def sizes_of_step(step: Step) -> Sizes:
    """The axes of the step's forward, had its request been alone in it."""
    windows = step.windows
    branches, window = windows.input_ids.shape
    return Sizes(1, branches, window, tiles(windows.prefix), windows.wanted.shape[1])


def recording_from_decoder(
    decoder: Decoder, prompts: Iterable[Prompt], source: Callable[[int], Source], progress: Progress
) -> Recording:
    """Decode `prompts` by the bundle's defaults, LoPA with as many branches as accelerators have by default.

    `source` names the prompts, given the number of forwards.

    `progress` hears how many prompts are done.
    """
    # ShapeBuckets are for accelerators, whatever device records.
    config = decoder.config()
    if decoder.plan(config).strategy == "lopa":
        config = replace(config, branches=DEFAULT_BRANCHES)
    requests: list[tuple[Sizes, ...]] = []
    longest = 0
    for prompt in prompts:
        _, steps = result_with_steps(decoder, prompt, config)
        longest = max(longest, steps[0].branches[0].layout.prompt)
        requests.append(tuple(map(sizes_of_step, steps)))
        progress(len(requests))
    return Recording(tuple(requests), (decoder.plan(config),), longest, (source(sum(map(len, requests))),))


def joined_recordings(recordings: Sequence[Recording]) -> Recording:
    """Several recordings, at least one, as one."""
    return Recording(
        requests=tuple(request for each in recordings for request in each.requests),
        plans=tuple(plan for each in recordings for plan in each.plans),
        longest_prompt=max(each.longest_prompt for each in recordings),
        sources=tuple(source for each in recordings for source in each.sources),
    )


def forwards_of_recording(recording: Recording, parallel: int) -> Counter[Sizes]:
    """How often each shape would run with `parallel` requests under way at a time.

    Requests come in order, the next as soon as one ends; every round runs the next forward of each. Those whose common
    shape has few padding rows share a forward, the largest first.
    """
    waiting = iter(recording.requests)
    under_way: list[list[Sizes]] = []
    forwards: Counter[Sizes] = Counter()
    while True:
        while len(under_way) < parallel and (request := next(waiting, None)) is not None:
            if request:
                under_way.append(list(reversed(request)))
        if not under_way:
            return forwards
        for group in packed_sizes([request.pop() for request in under_way]):
            forwards[group] += 1
        under_way = [request for request in under_way if request]


def packed_sizes(alone: Sequence[Sizes]) -> list[Sizes]:
    """The shapes of the forwards in which requests whose shapes `alone` are these run together."""
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
    """`shape` with one more request in it."""
    return Sizes(
        shape.requests + sizes.requests,
        max(shape.branches, sizes.branches),
        max(shape.window, sizes.window),
        max(shape.prefix, sizes.prefix),
        max(shape.wanted, sizes.wanted),
    )
