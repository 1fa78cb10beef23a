"""Forwards of recorded requests, alone and batched, and the recording of a decode."""

from collections import Counter
from pathlib import Path

from lopa.bench.buckets.forward_recording import (
    Recording,
    forwards_of_recording,
    join_recordings,
    recording_from_decoder,
)
from lopa.runtime.bundle.buckets import ShapeSource
from lopa.runtime.contract.sizes import Sizes
from lopa.runtime.decoder import Decoder
from lopa.runtime.decoding.step import Step
from lopa.runtime.generation_config import GenerationConfig, resolve

PLAN = resolve(GenerationConfig())
FIRST, LATER, SMALL = (
    Sizes(1, 1, 60, 64, 33),
    Sizes(1, 4, 64, 128, 40),
    Sizes(1, 1, 16, 192, 9),
)


def recording(*requests: tuple[Sizes, ...]) -> Recording:
    return Recording(requests, (PLAN,), 28, (ShapeSource(name="test", sha256="", forwards=sum(map(len, requests))),))


def test_alone_every_step_is_a_forward() -> None:
    requests = recording((FIRST, LATER, LATER), (), (FIRST,))
    assert forwards_of_recording(requests, 1) == Counter({FIRST: 2, LATER: 2})


def test_only_similar_shapes_share_a_forward() -> None:
    requests = recording((FIRST, LATER), (FIRST, SMALL), (FIRST,))
    # First all three run together. LATER and SMALL would be mostly padding, so they run apart.
    assert forwards_of_recording(requests, 3) == Counter({Sizes(3, 1, 60, 64, 33): 1, LATER: 1, SMALL: 1})
    # With two at a time, the third starts after the others.
    assert forwards_of_recording(requests, 2) == Counter({Sizes(2, 1, 60, 64, 33): 1, LATER: 1, SMALL: 1, FIRST: 1})


def test_a_shared_forward_has_the_maximum_of_every_size() -> None:
    one, other = Sizes(1, 4, 60, 64, 40), Sizes(1, 4, 64, 192, 12)
    assert forwards_of_recording(recording((one,), (other,)), 2) == Counter({Sizes(2, 4, 64, 192, 40): 1})


def test_a_decode_is_recorded_step_by_step(tiny_bundle: Path) -> None:
    progress_calls: list[int] = []
    prompts = ["Question: 2 + 3?", "Question: Omar has 6 balloons and buys 3 more. How many?"]
    with Decoder.open(tiny_bundle, threads=1) as decoder:
        found = recording_from_decoder(
            decoder,
            prompts,
            lambda forwards: ShapeSource(name="two", sha256="", forwards=forwards),
            progress_calls.append,
        )
        steps: list[Step] = []
        results = [
            list(decoder.stream(prompt, decoder.config(branches=4), on_step=steps.append))[-1].result
            for prompt in prompts
        ]
    assert progress_calls == [1, 2]
    assert [len(request) for request in found.requests] == [result.steps for result in results]
    assert found.longest_prompt == max(len(result.prompt_ids) for result in results)
    assert found.sources[0].forwards == len(steps)
    assert [sizes.branches for request in found.requests for sizes in request] == [len(step.branches) for step in steps]
    assert found.requests[0][0].window == len(results[0].prompt_ids) + 32


def test_joined_recordings() -> None:
    joined = join_recordings([recording((FIRST,)), recording((LATER, LATER), (SMALL,))])
    assert joined.requests == ((FIRST,), (LATER, LATER), (SMALL,))
    assert (len(joined.params), len(joined.sources), joined.longest_prompt) == (2, 2, 28)
