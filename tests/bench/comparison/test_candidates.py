"""Candidates are valid, distinct and complete, for block models and for sliding blocks."""

import shutil
from pathlib import Path

import pytest
from tests.runtime.decoding.test_branch_budget import costs_with

from lopa.bench.comparison.candidates import (
    CONTROL,
    Candidate,
    control_candidate,
    exact_candidates,
    first_candidates,
    neighbors,
)
from lopa.runtime import Decoder
from lopa.runtime.bundle import Bundle
from lopa.runtime.bundle.costs import costs_name
from lopa.runtime.bundle.edit import edit_bundle, write_manifest
from lopa.runtime.bundle.record import json_from_record


def test_candidates_of_the_toy_differ_from_each_other_and_from_the_defaults(tiny_bundle: Path) -> None:
    with Decoder.open(tiny_bundle, threads=1) as decoder:
        control, candidates = control_candidate(decoder), first_candidates(decoder)
        params = [decoder.params(each.config(decoder)) for each in (control, *candidates)]
        assert control.name == CONTROL
        assert params[0] == decoder.params()
        assert len({str(params.as_json()) for params in params}) == len(params)
        names = {each.name for each in candidates}
        assert {"threshold 0.9, first masked", "eb 0.05", "lopa 4 branches 0.9", "d2f 0.95, first masked"} <= names
        assert "d2f 0.9" not in names  # the defaults on one CPU
        assert not any("auto" in name for name in names)  # there is no cost table


@pytest.mark.parametrize(("threads", "fits"), [(1, True), (2, False)])
def test_a_cost_table_of_other_threads_is_left_out_with_a_warning(
    tiny_bundle: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture, threads: int, fits: bool
) -> None:
    folder = Path(shutil.copytree(tiny_bundle, tmp_path / "b"))
    costs = costs_with(Bundle.open(folder).manifest.weights_digest, first=1.0, each=0.0)
    (folder / costs_name("cpu")).write_bytes(json_from_record(costs))
    with Decoder.open(folder, threads=threads) as decoder:
        names = {each.name for each in first_candidates(decoder)}
        assert any("auto" in name for name in names) == fits
    assert ("measured for --threads 1" in caplog.text) != fits


def test_a_default_of_the_bundle_does_not_change_a_candidate(tiny_bundle: Path, tmp_path: Path) -> None:
    folder = Path(shutil.copytree(tiny_bundle, tmp_path / "b"))
    defaults = {"strategy": "threshold", "skip_threshold": 0.6, "unmask_first_masked": True}
    write_manifest(edit_bundle(Bundle.open(folder), defaults=defaults))
    with Decoder.open(tiny_bundle, threads=1) as plain, Decoder.open(folder, threads=1) as changed:
        there = {each.name: changed.params(each.config(changed)) for each in first_candidates(changed)}
        for each in first_candidates(plain):
            if each.name in there:
                assert there[each.name] == plain.params(each.config(plain)), each.name
        assert changed.params(control_candidate(changed).config(changed)) == changed.params()


def test_exact_candidates_have_the_tokens_of_one_token_per_step(tiny_bundle: Path) -> None:
    prompt = "Question: Jack has 5 marbles. Sam has 3 more marbles than Jack. How many do they have?\nAnswer:"
    with Decoder.open(tiny_bundle, threads=1) as decoder:
        found = [decoder.generate(prompt, each.config(decoder)) for each in exact_candidates(decoder)]
        assert len(found) == 4
        assert {result.text for result in found} == {found[0].text}
        assert found[0].steps >= found[0].tokens
        assert all(result.steps < found[0].steps for result in found[1:])


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"strategy": "threshold"}, {"block size 16", "block size 64", "attention block_causal"}),
        (
            {"strategy": "threshold", "cache": "prefix"},
            {"block size 16", "block size 64", "attention block_causal", "cache none", "cache dual"},
        ),
    ],
)
def test_neighbors_change_one_option(tiny_bundle: Path, options: dict[str, str], expected: set[str]) -> None:
    with Decoder.open(tiny_bundle, threads=1) as decoder:
        chosen = Candidate("chosen", options)
        found = neighbors(decoder, chosen)
        assert {each.name.removeprefix("chosen, ") for each in found} <= expected
        assert len(found) >= 3
        assert all(len(set(each.options) - set(options)) <= 1 for each in found)
