"""Holes are filled as in recorded loops: a plain loop in float64 without a cache, token by token and step by step.

tests/reference/infill/README.md describes the recordings.
"""

import gzip
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.conformance.family_traces import read_family_traces
from tests.conformance.infill_recordings import (
    infill_comparisons,
    infill_files,
    is_dreamon,
    options_of_dreamon,
    options_of_rule,
)
from tests.dreamon_checkpoint import HEAD_ROWS

from lopa.runtime import Decoder
from lopa.runtime.errors import BadInputError

FILES = infill_files()


@pytest.fixture(scope="module")
def decoder_of(
    family_bundle: Callable[..., Path], export_tiny: Callable[..., Path], expand_bundle: Path
) -> Callable[[Path], Decoder]:
    """Return a function that opens the model of a recording."""

    def opened(path: Path) -> Decoder:
        header, _ = read_family_traces(path)
        if is_dreamon(header):
            assert tuple(map(tuple, header["head_rows"])) == HEAD_ROWS
            return Decoder.open(expand_bundle, threads=1)
        bundle = export_tiny(with_logits=False, lora=None) if header["shift"] else family_bundle("llada")
        return Decoder.open(bundle, threads=1)

    return opened


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.name.partition(".")[0])
def test_recorded_loops_are_reproduced(path: Path, decoder_of: Callable[[Path], Decoder]) -> None:
    with decoder_of(path) as decoder:
        found = infill_comparisons(path, decoder)
    assert len(found) == 20
    mismatches = [each.mismatch for each in found if each.mismatch is not None]
    assert not mismatches, "\n".join(mismatches)


def test_every_recording_is_there() -> None:
    assert [path.name.partition(".")[0] for path in FILES] == [
        "dream_eb05_all",
        "dream_t09_b4",
        "dreamon_entropy_pad",
        "dreamon_maskgit_nopad",
        "llada_one_all",
        "llada_t05_hole",
    ]
    steps = [step for path in FILES for trace in read_family_traces(path)[1] for step in trace["steps"]]
    assert {step["what"] for step in steps if "what" in step} == {"fill", "expand", "delete"}


def changed(path: Path, folder: Path, change: Callable[[dict[str, Any], list[dict[str, Any]]], object]) -> Path:
    """Return a copy of two traces of a file, changed by `change(header, traces)`."""
    header, traces = read_family_traces(path)
    header, traces = json.loads(json.dumps(header)), traces[:2]
    change(header, traces)
    copy = folder / path.name
    with gzip.open(copy, "wt") as file:
        file.writelines(json.dumps(line) + "\n" for line in (header, *traces))
    return copy


def named(name: str) -> Path:
    return next(path for path in FILES if path.name.startswith(name))


def test_differences_are_detected(decoder_of: Callable[[Path], Decoder], tmp_path: Path) -> None:
    def other_token(_: Any, traces: list[dict[str, Any]]) -> None:
        traces[1]["steps"][0]["fills"][0][1] += 1

    def other_window(_: Any, traces: list[dict[str, Any]]) -> None:
        traces[1]["steps"][0]["window_after"][0] += 1

    def one_step_less(_: Any, traces: list[dict[str, Any]]) -> None:
        del traces[1]["steps"][-1]

    for name, change, text in (
        ("llada_t05_hole", other_token, "instead of"),
        ("dreamon_entropy_pad", other_window, "instead of"),
        ("dreamon_entropy_pad", one_step_less, "steps instead of"),
    ):
        with decoder_of(named(name)) as decoder:
            first, second = infill_comparisons(changed(named(name), tmp_path, change), decoder)
        assert first.whole
        assert second.mismatch is not None
        assert text in second.mismatch


def test_a_mask_token_is_no_fill(decoder_of: Callable[[Path], Decoder], tmp_path: Path) -> None:
    """A loop that writes the mask token beside others goes on. One that writes nothing else repeats it for ever."""

    def beside(_: Any, traces: list[dict[str, Any]]) -> None:
        step = traces[1]["steps"][0]
        start, end = traces[1]["holes"][0]
        left = next(each for each in range(start, end) if each not in [fill[0] for fill in step["fills"]])
        step["fills"].append([left, 2, 0.6])

    def only(_: Any, traces: list[dict[str, Any]]) -> None:
        steps = traces[1]["steps"]
        steps[1:] = [{**steps[1], "fills": [[steps[1]["fills"][0][0], 2, 0.9]]}] * 5

    with decoder_of(named("dream_t09_b4")) as decoder:
        found = infill_comparisons(changed(named("dream_t09_b4"), tmp_path, beside), decoder)
    assert all(each.whole for each in found)
    with decoder_of(named("dreamon_entropy_pad")) as decoder:
        first, second = infill_comparisons(changed(named("dreamon_entropy_pad"), tmp_path, only), decoder)
    assert first.whole
    assert (second.mismatch, second.diverged_at, second.steps) == (None, 1, 2)
    assert second.named is not None
    assert "only mask tokens" in second.named


@pytest.mark.parametrize(
    ("rule", "options"),
    [
        (
            {"name": "entropy_bound", "gamma": 0.5, "by": "neg_entropy", "open": "hole"},
            {"strategy": "eb", "gamma": 0.5, "confidence": "neg_entropy", "block_add_threshold": 1.0},
        ),
        (
            {"name": "one", "by": "margin", "open": 4},
            {"strategy": "vanilla", "cache": "none", "confidence": "margin", "block_size": 4},
        ),
    ],
)
def test_options_of_rules(rule: dict[str, Any], options: dict[str, Any]) -> None:
    assert options_of_rule(rule).items() >= options.items()


def test_options_of_dreamon() -> None:
    params = {"alg": "topk_margin", "pad_eos_to_right": True, "min_gen_len": 4, "max_gen_len": 16, "temperature": 0}
    assert options_of_dreamon(params) == {"confidence": "margin", "drop_after_eos": True}


def test_unknown_rules_are_rejected() -> None:
    with pytest.raises(BadInputError, match="the rule 'p2'"):
        options_of_rule({"name": "p2", "open": "all"})
    with pytest.raises(BadInputError, match="the confidence 'random'"):
        options_of_rule({"name": "one", "by": "random", "open": "all"})
    with pytest.raises(BadInputError, match="alg 'p2'"):
        options_of_dreamon({"alg": "p2"})
    with pytest.raises(BadInputError, match="number_transfer_tokens 2"):
        options_of_dreamon({"alg": "entropy", "number_transfer_tokens": 2})
