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
from tests.conformance.recorded import DEVICE, Record, check_comparisons
from tests.dreamon_checkpoint import HEAD_ROWS, checkpoint_with_expand

from lopa.export.bundle_from_checkpoint import bundle_from_checkpoint
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
            return Decoder.open(expand_bundle, [device], threads=1)
        bundle = export_tiny(with_logits=False, lora=None) if header["shift"] else family_bundle("llada")
        return Decoder.open(bundle, [device], threads=1)

    device = DEVICE.format(0)
    return opened


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.name.partition(".")[0])
def test_recorded_loops_are_reproduced(
    path: Path, decoder_of: Callable[[Path], Decoder], record_property: Record
) -> None:
    with decoder_of(path) as decoder:
        found = infill_comparisons(path, decoder)
    assert len(found) == 20
    check_comparisons(found, record_property)


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


Change = Callable[[Any, list[dict[str, Any]]], None]


def every_fill_a_mask(_: Any, traces: list[dict[str, Any]]) -> None:
    for step in traces[1]["steps"]:
        for fill in step["fills"]:
            fill[1] = 2


def last_fill_a_mask(_: Any, traces: list[dict[str, Any]]) -> None:
    traces[1]["steps"][-1]["fills"][0][1] = 2
    traces[1]["filled_ids"] = [9]


def mask_beside(_: Any, traces: list[dict[str, Any]]) -> None:
    step = traces[1]["steps"][0]
    positions = [fill[0] for fill in step["fills"]]
    start, end = traces[1].get("hole") or traces[1]["holes"][0]
    step["fills"].append([next(each for each in range(start, end) if each not in positions), 2, 0.6])


def only_masks(_: Any, traces: list[dict[str, Any]]) -> None:
    (start, end), ids = traces[1]["hole"], traces[1]["ids"]
    step = traces[1]["steps"][0]
    step.update(fills=[[step["fills"][0][0], 2, step["fills"][0][2]]], expand_blocked=True)
    traces[1].update(steps=[step] * 5, filled_ids=[*ids[:start], *[2] * (end - start), *ids[end:]])


@pytest.mark.parametrize("change", [every_fill_a_mask, last_fill_a_mask, mask_beside])
@pytest.mark.parametrize("name", ["dream_t09_b4", "llada_one_all", "dreamon_entropy_pad"])
def test_a_mask_token_that_is_not_the_best_is_a_mismatch(
    name: str, change: Change, decoder_of: Callable[[Path], Decoder], tmp_path: Path
) -> None:
    with decoder_of(named(name)) as decoder:
        first, second = infill_comparisons(changed(named(name), tmp_path, change), decoder)
    assert first.whole
    assert second.mismatch is not None
    assert "the mask token at" in second.mismatch


def test_a_loop_that_repeats_the_mask_token_ends_the_comparison(
    decoder_of: Callable[[Path], Decoder], tmp_path: Path
) -> None:
    """The model proposes the mask token where the recorded one proposed another token."""

    def other_ids(header: Any, traces: list[dict[str, Any]]) -> None:
        only_masks(header, traces)
        traces[1]["filled_ids"] = [9]

    path = named("dreamon_entropy_pad")
    checkpoint, bundle = tmp_path / "checkpoint", tmp_path / "bundle"
    bundle_from_checkpoint(checkpoint_with_expand(checkpoint, (*HEAD_ROWS, (2, 342, 1.3))), bundle)
    with Decoder.open(bundle, threads=1) as decoder:
        stuck = infill_comparisons(changed(path, tmp_path, only_masks), decoder)[1]
        other = infill_comparisons(changed(path, tmp_path, other_ids), decoder)[1]
    assert (stuck.mismatch, stuck.diverged_at, stuck.steps) == (None, 0, 1)
    assert stuck.named is not None
    assert "only mask tokens" in stuck.named
    assert other.mismatch is not None
    assert "other ids at the end" in other.mismatch
    with decoder_of(path) as decoder:
        assert infill_comparisons(changed(path, tmp_path, only_masks), decoder)[1].mismatch is not None


def at_the_limit(header: Any, traces: list[dict[str, Any]]) -> None:
    """Change traces to those of a loop that ended at its limit of 3 steps."""
    header["params"]["steps"] = 3
    for trace in traces:
        del trace["steps"][3:]
        trace["filled_ids"] = trace["steps"][-1]["window_after"]
        trace["masks_left"] = trace["filled_ids"].count(2)


def test_a_limit_of_steps_is_compared(decoder_of: Callable[[Path], Decoder], tmp_path: Path) -> None:
    def other_ids(header: Any, traces: list[dict[str, Any]]) -> None:
        at_the_limit(header, traces)
        traces[1]["filled_ids"] = []

    def other_limit(header: Any, traces: list[dict[str, Any]]) -> None:
        at_the_limit(header, traces)
        header["params"]["steps"] = 128

    def exceeded(header: Any, _: list[dict[str, Any]]) -> None:
        header["params"]["steps"] = 3

    path = named("dreamon_entropy_pad")
    with decoder_of(path) as decoder:
        assert all(each.whole for each in infill_comparisons(changed(path, tmp_path, at_the_limit), decoder))
        for change, text in (
            (other_ids, "after the last step"),
            (other_limit, "the limit is 128"),
            (exceeded, "at most 3 are possible"),
        ):
            mismatch = infill_comparisons(changed(path, tmp_path, change), decoder)[1].mismatch
            assert mismatch is not None
            assert text in mismatch
    path = named("llada_one_all")
    with decoder_of(path) as decoder:

        def cut(_: Any, traces: list[dict[str, Any]]) -> None:
            traces[1].update(steps=traces[1]["steps"][:1], masks_left=3, filled_ids=[])

        mismatch = infill_comparisons(changed(path, tmp_path, cut), decoder)[1].mismatch
    assert mismatch is not None
    assert "masks left after 1 steps" in mismatch


@pytest.mark.parametrize(
    ("name", "change", "text"),
    [
        ("llada_one_all", lambda header, _: header.update(mask=7), "the mask token 7"),
        ("llada_one_all", lambda header, _: header.update(eos=7), "the end-of-text token 7"),
        ("llada_one_all", lambda header, _: header.update(shift=1), "shift 1"),
        ("llada_one_all", lambda header, _: header["rule"].update(temperature=1.0), "temperature 1.0"),
        ("llada_one_all", lambda header, _: header["rule"].update(open=2.7), "open 2.7"),
        ("dreamon_entropy_pad", lambda header, _: header.update(expand=5), "the expand token 5"),
        ("dreamon_entropy_pad", lambda header, _: header.update(delete=5), "the delete token 5"),
        ("dreamon_entropy_pad", lambda header, _: header["params"].update(use_cache=False), "use_cache False"),
    ],
)
def test_other_models_and_options_are_refused(
    name: str, change: Change, text: str, decoder_of: Callable[[Path], Decoder], tmp_path: Path
) -> None:
    with decoder_of(named(name)) as decoder, pytest.raises(BadInputError, match=text):
        infill_comparisons(changed(named(name), tmp_path, change), decoder)


@pytest.mark.parametrize("name", ["dream_eb05_all", "llada_t05_hole", "dreamon_maskgit_nopad"])
def test_probabilities_are_compared(name: str, decoder_of: Callable[[Path], Decoder], tmp_path: Path) -> None:
    def other(_: Any, traces: list[dict[str, Any]]) -> None:
        traces[1]["steps"][0]["fills"][0][2] = 0.123

    with decoder_of(named(name)) as decoder:
        mismatch = infill_comparisons(changed(named(name), tmp_path, other), decoder)[1].mismatch
    assert mismatch is not None
    assert "probability" in mismatch


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
