"""The toy of the waiting lines: its lessons, its loss written out in float64, and a checkpoint that can be exported."""

import json
import random
from pathlib import Path

import numpy as np
import pytest
import torch
from click.testing import CliRunner
from tools.checkpoint.learn_lines import loss_of, main, trained_model
from tools.checkpoint.line_lessons import ANSWER, LENGTH, LINES_TOY, Lesson, lesson, lines_tokenizer

from lopa.bench.evaluation.waiting_lines import NAMES, TASKS, line_question
from lopa.export.checkpoint.config import config_from_checkpoint

TOKENIZER = lines_tokenizer()


def question(given: Lesson, index: int) -> Lesson:
    """One question of a lesson, without padding."""
    padding = int((given.positions[index] == 0).sum()) - 1
    rows = slice(padding, None)
    return Lesson(
        given.ids[index : index + 1, rows],
        given.positions[index : index + 1, rows],
        given.visible[index : index + 1, rows, rows],
        given.masked[index : index + 1],
        given.answers[index : index + 1],
    )


def test_every_name_is_one_token() -> None:
    assert all(len(TOKENIZER.encode(f" {name}").ids) == 1 for name in NAMES)
    draw = random.Random(1)
    for task in TASKS.values():
        prompt = line_question(task, LENGTH, draw).prompt
        assert len(TOKENIZER.encode(prompt).ids) < 40
        assert TOKENIZER.decode(TOKENIZER.encode(prompt).ids) == prompt


def test_a_lesson_asks_and_answers() -> None:
    given = lesson(TOKENIZER, 40, random.Random(5))
    shown = given.ids[:, -ANSWER:]
    assert (shown[given.masked] == LINES_TOY.mask).all()
    assert (shown[~given.masked] == given.answers[~given.masked]).all()
    assert given.masked.any(axis=1).all()
    assert 0.3 < given.masked.mean() < 0.7
    texts = [TOKENIZER.decode(row.tolist()) for row in given.answers]
    assert all(text.count(",") == LENGTH - 1 for text in texts)
    copied = [i for i, row in enumerate(given.ids) if "as it is" in TOKENIZER.decode(row.tolist())]
    assert copied
    for i in copied:
        assert f"line is{texts[i]}. Write" in TOKENIZER.decode(given.ids[i].tolist())


def test_prompts_see_no_answer_and_nobody_sees_padding() -> None:
    given = lesson(TOKENIZER, 20, random.Random(6))
    alone = question(given, 3)
    length = alone.ids.shape[1] - ANSWER
    assert alone.ids[0, 0] == LINES_TOY.bos
    assert alone.visible[0, length:].all()
    assert alone.visible[0, :length, :length].all()
    assert not (alone.visible[0, :length, length:] & ~np.eye(length, length + ANSWER, dtype=bool)[:, length:]).any()
    padding = given.ids.shape[1] - alone.ids.shape[1]
    assert padding > 0
    assert not given.visible[3, padding:, :padding].any()


@pytest.fixture(scope="module")
def model() -> torch.nn.Module:
    found, _ = trained_model(1, seed=0)
    return found


def test_the_loss_is_that_of_each_question_alone_written_out(model: torch.nn.Module) -> None:
    """Without padding, in float64, from the row in front of each masked position."""
    given = lesson(TOKENIZER, 6, random.Random(7))
    exact = model.double()
    losses = []
    for index in range(6):
        alone = question(given, index)
        bias = np.where(alone.visible, 0.0, -1e30)[:, None]
        with torch.no_grad():
            logits = exact(
                input_ids=torch.from_numpy(alone.ids),
                position_ids=torch.from_numpy(alone.positions),
                attention_mask=torch.from_numpy(bias),
            ).logits[0]
        begins = alone.ids.shape[1] - ANSWER
        for place in np.flatnonzero(alone.masked[0]):
            row = logits[begins + place - 1].numpy()
            losses.append(np.log(np.exp(row - row.max()).sum()) + row.max() - row[alone.answers[0, place]])
    with torch.no_grad():
        found = loss_of(model.float(), given).item()  # type: ignore[arg-type]
    assert found == pytest.approx(np.mean(losses), rel=1e-4)


def test_it_learns(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tools.checkpoint.learn_lines._QUESTIONS", 8)
    monkeypatch.setattr("tools.checkpoint.learn_lines._WARM_UP", 5)
    _, first = trained_model(1, seed=0)
    _, last = trained_model(60, seed=0)
    assert last < 0.8 * first


def test_a_checkpoint_of_the_family_dream(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tools.checkpoint.learn_lines._QUESTIONS", 2)
    out = tmp_path / "lines"
    done = CliRunner().invoke(main, [str(out), "--steps", "1"], catch_exceptions=False)
    assert done.exit_code == 0
    assert json.loads((out / "config.json").read_text())["mask_token_id"] == LINES_TOY.mask
    assert sorted(path.name for path in out.iterdir()) == [
        *("config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json")
    ]
    assert CliRunner().invoke(main, [str(out), "--steps", "1"]).exit_code == 2, "what is there stays"
    assert config_from_checkpoint(out).dimensions == LINES_TOY.dimensions
