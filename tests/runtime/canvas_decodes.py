"""Decodes of canvases that are the same on every device. A subclass has a fixture `decoder` on its device."""

import gzip
import json
from itertools import pairwise

import numpy as np
import pytest
from tests.canvas_checkpoints import FOLDER

from lopa import Chat, Decoder, DoneEvent, DraftEvent, TextEvent
from lopa.runtime import Step

QUESTIONS = ["Count from 3 to 9.", "Tell me about a dog.", "Repeat: pens keys cards", "Count from 1 to 4."]


def chat(question: str) -> Chat:
    return Chat([{"role": "user", "content": question}])


class CanvasDecodes:
    """Decodes of the bundle canvas_bundle."""

    traces = 100
    """Number of recorded answers, at most."""
    seeds = 6

    def test_the_recorded_answers(self, decoder: Decoder) -> None:
        lines = gzip.decompress((FOLDER / "canvas16" / "traces" / "default.jsonl.gz").read_bytes()).splitlines()
        for trace in map(json.loads, lines[1 : self.traces + 1]):
            found = decoder.generate(trace["prompt"], seed=trace["seed"], reference=True)
            assert list(found.token_ids) == trace["generated"]
            assert found.tokens_per_forward == pytest.approx(trace["tokens_per_forward"], abs=1e-5)

    def test_answers_do_not_depend_on_the_batch(self, decoder: Decoder) -> None:
        """Some requests end while others run."""
        together = decoder.generate([chat(each) for each in QUESTIONS], seed=5, max_num_seqs=3)
        alone = [decoder.generate(chat(each), seed=5) for each in QUESTIONS]
        assert [each.token_ids for each in together] == [each.token_ids for each in alone]
        assert len({each.steps for each in together}) > 2
        assert together[0].text.startswith("3, 4, 5, 6, 7, 8, 9")

    def test_drafts_are_the_best_tokens_and_text_comes_by_canvas(self, decoder: Decoder) -> None:
        events = list(decoder.stream(chat(QUESTIONS[1]), seed=5, drafts=True))
        drafts = [event for event in events if isinstance(event, DraftEvent)]
        texts = [event for event in events if isinstance(event, TextEvent)]
        done = events[-1]
        assert isinstance(done, DoneEvent)
        assert len(drafts) == done.result.steps
        assert 1 <= len(texts) <= -(-done.result.tokens // 16)
        assert drafts[-1].text.startswith(done.result.text.strip())
        assert all(token is not None for draft in drafts for token in draft.token_ids)

    def test_branches_accept_more_and_the_surest_wins(self, decoder: Decoder) -> None:
        steps = list[Step]()
        for seed in range(self.seeds):
            one = decoder.generate(chat(QUESTIONS[1]), seed=seed, branches=1)
            assert one.token_ids == decoder.generate(chat(QUESTIONS[1]), seed=seed).token_ids
            more = decoder.generate(
                chat(QUESTIONS[1]), seed=seed, branches=3, on_step=lambda _, step: steps.append(step)
            )
            assert more.text.startswith("The dog ")
        assert {len(step.branches) for step in steps} == {1, 2, 3}
        for step, after in pairwise(steps):
            assert step.canvas is not None
            assert step.confidences[step.winner] == max(step.confidences)
            if len(after.branches) > 1:  # of the same canvas
                ids = after.rows.input_ids.reshape(len(after.branches), -1)
                assert ids[0].tolist() == step.canvas.renoised.tolist()
                kept = [np.count_nonzero(each == step.canvas.drawn) for each in ids]
                assert kept == sorted(kept)
        assert any(step.winner for step in steps)
