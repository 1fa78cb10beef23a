"""lopa-web makes the recorded choices of published loops, step by step, and draws as Python does."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.conformance.family_traces import (
    FAMILIES,
    MIXTURES,
    checkpoint_of,
    compared,
    config_of,
    config_of_file,
    family_trace_files,
    read_family_traces,
)
from tests.conformance.recorded import Comparison, Record, check_comparisons, compare, read_traces, trace_files
from tests.lone_decode import LoneDecode
from tests.params import params_of
from tests.web.installed import decodes_of, no_web, options_only_in_python
from tests.web.replayed import request_of, steps_of

from lopa.runtime.bundle import Bundle
from lopa.runtime.generation_config import GenerationConfig
from lopa.runtime.sessions.session import open_session

pytestmark = [pytest.mark.web, no_web]


def comparisons(bundle: Path, path: Path, device: str, limit: int | None = None) -> list[Comparison]:
    """Decode the first prompts of a file of traces by lopa-web, and compare."""
    config, traces = read_traces(path)
    eos = Bundle.open(bundle).manifest.special_tokens.eos
    requests = [request_of(trace["prompt_ids"], config, eos=eos) for trace in traces[:limit]]
    decodes = decodes_of(bundle, device, requests)
    return [
        compare(trace, steps_of(decode), np.array(decode["generated"]))
        for trace, decode in zip(traces[:limit], decodes, strict=True)
    ]


@pytest.mark.parametrize("path", trace_files(), ids=lambda path: path.name.split(".")[0])
def test_published_traces_are_reproduced(path: Path, tiny_bundle: Path, record_property: Record) -> None:
    check_comparisons(comparisons(tiny_bundle, path, "cpu"), record_property)


def name_of(path: Path) -> str:
    return f"{checkpoint_of(path).name}-{path.name.split('.')[0]}"


def lacking(path: Path) -> list[str]:
    """Return the options of a recording that lopa-web lacks."""
    options = request_of([], config_of_file(path), eos=0)["options"]
    given = {name for name, value in options.items() if value is not None and value is not False}
    return sorted(given & {*options_only_in_python()})


def is_greedy(path: Path) -> bool:
    """Return False if the recording's tokens were drawn by torch, which draws others."""
    return not config_of_file(path).temperature


RECORDINGS = [path for folder in (FAMILIES, MIXTURES) for path in family_trace_files(folder) if is_greedy(path)]
"""Recordings of families and of mixtures of experts."""
REPLAYED = [path for path in RECORDINGS if not lacking(path)]
REJECTED = [path for path in RECORDINGS if lacking(path)]


def family_comparisons(
    path: Path, family_bundle: Callable[..., Path], device: str, limit: int | None = None, **options: Any
) -> list[Comparison]:
    """Decode the first prompts of a family's file by lopa-web, and compare. `options` replace recorded ones."""
    header, traces = read_family_traces(path)
    traces = traces[:limit]
    config = config_of(header, **options)
    requests = [request_of(trace["prompt_ids"], config, eos=header["eos"]) for trace in traces]
    decodes = decodes_of(family_bundle(checkpoint_of(path).name), device, requests)
    return [_compared(trace, header, decode) for trace, decode in zip(traces, decodes, strict=True)]


@pytest.mark.parametrize("path", REPLAYED, ids=name_of)
def test_published_loops_of_families_are_reproduced(
    path: Path, family_bundle: Callable[..., Path], record_property: Record
) -> None:
    found = family_comparisons(path, family_bundle, "cpu")
    assert len(found) >= 20
    check_comparisons(found, record_property)


def test_most_recordings_of_families_are_replayed() -> None:
    """The others edit tokens, or stop early as only LLaDA2's published code does."""
    assert [len(paths) for paths in (RECORDINGS, REPLAYED, REJECTED)] == [37, 32, 5]
    assert sum(len(read_family_traces(path)[1]) for path in REPLAYED) == 726
    names = {name for path in REJECTED for name in lacking(path)}
    assert names == {"editing_threshold", "editing_limit", "eos_early_stop"}


@pytest.mark.parametrize("path", REJECTED, ids=name_of)
def test_recordings_with_options_of_python_are_rejected(path: Path, family_bundle: Callable[..., Path]) -> None:
    with pytest.raises(AssertionError, match=f"BadInputError: .*({'|'.join(lacking(path))}), which lopa-web lacks"):
        family_comparisons(path, family_bundle, "cpu", limit=1)


def _compared(trace: dict[str, Any], header: Any, decode: dict[str, Any]) -> Comparison:
    states = [step["generated"] for step in decode["steps"]]
    pairs = list(zip(steps_of(decode), states, strict=True))
    return compared(trace, header, pairs, decode["committed"])


@pytest.mark.parametrize(
    ("family", "options"),
    [
        ("sdar", {"block_steps": 4, "block_size": 8, "top_k": 4, "top_p": 0.7, "reference": True}),
        ("sdar", {"block_size": 4, "top_p": 0.9}),
        ("fast_dllm_v2", {"block_size": 16, "sub_block": 4, "cache": "sub_block", "top_k": 8, "reference": True}),
        ("fast_dllm_v2", {"block_size": 16, "sub_block": 8, "top_k": 3}),
    ],
)
def test_families_draw_the_tokens_of_python(
    family: str, options: dict[str, Any], family_bundle: Callable[..., Path]
) -> None:
    """Draws of published loops come from torch; these are ours."""
    options = {"strategy": "threshold", "attention": "block_causal", "alignment": "absolute", **options}
    config = GenerationConfig(**options, max_new_tokens=40, temperature=1.0, seed=9, skip_threshold=0.5)
    bundle = Bundle.open(family_bundle(family))
    manifest, prompts = bundle.manifest, [list(range(5, 5 + length)) for length in (1, 16, 21)]
    session = open_session(bundle, "cpu", threads=1)
    expected = []
    for prompt in prompts:
        decoding = LoneDecode(session, np.array(prompt), params_of(config), manifest)
        decoding.run()
        expected.append((decoding.answer.generated.tolist(), decoding.answer.committed.tolist(), decoding.steps))
    session.close()
    requests = [request_of(prompt, config, eos=manifest.special_tokens.eos) for prompt in prompts]
    decodes = decodes_of(bundle.path, "cpu", requests)
    assert [(each["generated"], each["committed"], len(each["steps"])) for each in decodes] == expected
