"""Texts are revised: which tokens are improbable, what stays, and limits of forwards."""

import json
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.conformance.plain.test_plain_caches import plain_of_bundle

from lopa.runtime import Decoder
from lopa.runtime.errors import BadInputError
from lopa.runtime.revision import MASKED_AT_ONCE, Token, improbable_spans

TEXTS = (
    "Question: Ivy has 3 shells and finds 4 more.\nAnswer: 3 + 4 = 9 banana.\n#### 7",
    "Zoë sang 🍎 twice; 日本 is far.\n",
    "7",
)


@pytest.fixture(params=["llada", "dream"])
def decoder(request: pytest.FixtureRequest) -> Decoder:
    found: Decoder = request.getfixturevalue(request.param)
    return found


def plain_probabilities(decoder: Decoder, text: str) -> tuple[list[tuple[int, int]], list[float]]:
    """Return the characters of each token that a row predicts, and its probability, by a plain network in float64."""
    manifest = decoder.bundle.manifest
    network = plain_of_bundle(decoder.bundle)
    spans = decoder.tokenizer.token_spans(text)
    before = decoder.tokenizer.encode("", add_bos=manifest.decoding.add_bos)
    ids = np.array([*before, *(number for number, _, _ in spans)])
    first = 1 if manifest.prediction_shift and not before else 0
    found = np.full(len(spans), np.nan)
    for remainder in range(MASKED_AT_ONCE):
        judged = np.arange(first, len(spans))[remainder::MASKED_AT_ONCE]
        if not len(judged):
            continue
        tokens = ids.copy()
        tokens[len(before) + judged] = manifest.special_tokens.mask
        logits, _ = network.rows(tokens, np.arange(len(tokens)), np.ones((len(tokens),) * 2, np.bool_))
        rows = logits[len(before) + judged - manifest.prediction_shift]
        rows = np.exp(rows - rows.max(axis=1, keepdims=True))
        shares = rows / rows.sum(axis=1, keepdims=True)
        own_ids = ids[len(before) + judged]
        better = (shares > shares[np.arange(len(judged)), own_ids][:, None]).sum(axis=1)
        found[judged] = np.where(better < 8, shares[np.arange(len(judged)), own_ids], 0.0)
    return [(start, end) for _, start, end in spans[first:]], found[first:].tolist()


@pytest.mark.parametrize("text", TEXTS)
def test_tokens_below_the_threshold_are_decided_again(decoder: Decoder, text: str) -> None:
    spans, probabilities = plain_probabilities(decoder, text)
    gaps = [(low, high) for low, high in pairwise(sorted([0.0, *probabilities, 1.0])) if high - low > 1e-4]
    for low, high in gaps[:: len(gaps) // 5 + 1]:
        threshold = (low + high) / 2
        revision = decoder.revise(text, threshold=threshold)
        expected = [span for span, each in zip(spans, probabilities, strict=True) if each < threshold]
        covered = {place for start, end in revision.spans for place in range(start, end)}
        assert covered == {place for start, end in expected for place in range(start, end)}
        assert (revision.result is None) == (not expected)


@pytest.mark.parametrize("text", TEXTS)
def test_all_other_characters_stay(decoder: Decoder, text: str) -> None:
    rng = np.random.default_rng(len(text))
    for _ in range(6):
        places = sorted(rng.choice(len(text) + 1, min(4, len(text) + 1) // 2 * 2, replace=False).tolist())
        spans = [(start, end) for start, end in zip(places[::2], places[1::2], strict=True) if start]
        if not spans:
            continue
        revision = decoder.revise(text, spans=spans)
        assert revision.result is not None
        assert revision.result.holes is not None
        assert revision.spans == tuple(spans)
        pieces, end = [], 0
        for span, new in zip(spans, revision.result.holes, strict=True):
            pieces += [text[end : span[0]], new]
            end = span[1]
        assert revision.text == "".join([*pieces, text[end:]])


def test_a_revised_document_still_satisfies_its_schema(decoder: Decoder) -> None:
    pytest.importorskip("llguidance")
    properties = {"n": {"enum": [12, 40, 55]}, "ok": {"type": "boolean"}}
    schema = {"type": "object", "properties": properties, "required": ["n", "ok"]}
    text = '{"n": 99, "ok": 3.5}'
    for spans in ([(6, 8), (16, 19)], [(5, 19)]):
        revision = decoder.revise(text, spans=spans, json_schema=schema)
        assert json.loads(revision.text)["n"] in (12, 40, 55)
        assert isinstance(json.loads(revision.text)["ok"], bool)


def test_too_many_improbable_tokens_leave_out_the_most_probable() -> None:
    tokens = [Token(number, (2 * number, 2 * number + 1)) for number in range(100)]
    values = {number: (number * 37 % 100) / 100 for number in range(100)}
    spans = improbable_spans(tokens, values, 0.9)
    assert len(spans) == 64
    assert sorted(start // 2 for start, _ in spans) == sorted(sorted(values, key=values.__getitem__)[:64])


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({}, "neither spans nor a threshold"),
        ({"spans": []}, "no spans"),
        ({"spans": [(3, 3)]}, "empty span"),
        ({"spans": [(0, 99)]}, "end of a span"),
        ({"spans": [(1, 4), (3, 5)]}, "overlapping spans"),
        ({"spans": ["ab"]}, "span 'ab'"),
        ({"threshold": 1.5}, "threshold"),
        ({"spans": [(1, 2)], "regex": "a"}, "the text before the first hole does not satisfy the grammar"),
        ({"spans": [(1, 2)], "wrong": 1}, "wrong"),
    ],
)
def test_bad_input_is_refused(llada: Decoder, options: dict[str, Any], message: str) -> None:
    with pytest.raises(BadInputError, match=message):
        llada.revise("1 + 2 = 4", **options)


def test_a_model_that_sees_one_side_is_refused(tiny_bundle: Path) -> None:
    with Decoder.open(tiny_bundle, threads=1) as opened, pytest.raises(BadInputError, match="adapter"):
        opened.revise("1 + 2 = 4", threshold=0.5)
