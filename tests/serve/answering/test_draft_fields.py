"""Tokens of drafts: each has the step that wrote it, also for a reader that misses drafts."""

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from lopa.runtime.decoder import Decoder
from lopa.runtime.decoding.step import Step, step_table
from lopa.runtime.requests.result import DraftEvent
from lopa.runtime.text.text_with_holes import Hole, TextWithHoles
from lopa.serve.answering.draft_fields import DraftFields, StepRecords

PROMPT = "Question: A baker sells 12 rolls a day. How many rolls in 5 days?\nAnswer:"
LONG: dict[str, Any] = {"max_new_tokens": 48, "block_size": 16, "stop_at_eos": False}
OPTIONS: tuple[dict[str, Any], ...] = (
    {"branches": 4},
    {"branches": 3, "temperature": 1.5, "seed": 3},
    {"strategy": "d2f", "speculative": True, "branches": 3},
    {"strategy": "wino"},
    {"strategy": "vanilla"},
    {"strategy": "threshold", "editing_threshold": 0.05, "skip_threshold": 0.02, "attention": "block_causal"},
)
"""The last one is for LLaDA2, which edits."""


def drafts_of(decoder: Decoder, prompt: Any, every: int, **options: Any) -> list[tuple[DraftEvent, list[Any]]]:
    """Return each draft with the tokens that a reader of every `every`-th draft has then, None for masked ones."""
    records, found, shown = StepRecords(), [], list[Any]()
    fields = DraftFields(records, 0, decoder.tokenizer)
    for event in decoder.stream(prompt, drafts=True, on_step=lambda step: records.record(0, step), **options):
        if not isinstance(event, DraftEvent) or event.step % every:
            continue
        draft = fields.of_event(event)
        shown = [*shown[: draft["positions"]], *[None] * (draft["positions"] - len(shown))]
        for token in draft["tokens"]:
            shown[token["index"]] = None if token["text"] is None else token
        found.append((event, shown))
    return found


@pytest.mark.parametrize("every", [1, 3])
@pytest.mark.parametrize("options", OPTIONS, ids=lambda each: each.get("strategy", "lopa"))
def test_tokens_have_the_step_of_the_table(
    options: dict[str, Any], every: int, tiny_bundle: Path, family_bundle: Callable[..., Path]
) -> None:
    """The step is the first one since which the position has its token, and the table of steps has the other values."""
    steps: list[Step] = []
    edits = "editing_threshold" in options
    with Decoder.open(family_bundle("llada2") if edits else tiny_bundle, threads=1) as decoder:
        stream = decoder.stream(PROMPT, drafts=True, on_step=steps.append, **LONG, **options)
        canvases = {event.step: event for event in stream if isinstance(event, DraftEvent)}
        found = drafts_of(decoder, PROMPT, every, **LONG, **options)
    table = step_table(steps)
    rows = {
        (step, position): (probability, branch)
        for step, position, probability, branch in zip(
            *(table[name][table["unmasked"]].tolist() for name in ("step", "position", "probability", "branch")),
            strict=True,
        )
    }
    edited = {(step.number, int(position)) for step in steps for position in step.edited.positions}
    assert len(found) > 2
    assert bool(edited) == edits
    for event, shown in found:
        text = "".join("░" if token is None else token["text"] for token in shown)
        assert text == re.sub("\ufffd+(?=░|$)", "", event.text), "characters that are incomplete so far"
        for index, token in enumerate(shown):
            if token is None:
                continue
            since = event.step
            while (
                since > 1 and index < len(ids := canvases[since - 1].token_ids) and ids[index] == event.token_ids[index]
            ):
                since -= 1
            assert token["step"] == since
            if (since, event.start + index) in edited:
                continue
            probability, branch = rows[since, event.start + index]
            assert token["probability"] == pytest.approx(probability)
            anchor = len(steps[since - 1].branches) - 1
            assert token["branch"] == (None if branch == anchor else branch)


def test_tokens_move_with_holes_that_change_their_lengths(expand_bundle: Path) -> None:
    """Given text was written by no step, and the filled text is that of the tokens."""
    text = TextWithHoles(["Ivy has 4 ", Hole(2, 8), " and finds ", Hole(1, 6), " more."])
    with Decoder.open(expand_bundle, threads=1) as decoder:
        found = drafts_of(decoder, text, 1, attention="full")
    lengths = {len(shown) for _, shown in found}
    assert len(lengths) > 1
    for event, shown in found:
        assert "".join("░" if token is None else token["text"] for token in shown) == event.text
        given = "".join(token["text"] for token in shown if token and "step" not in token)
        assert given == " finds"  # the tokens beside holes are decoded with them
