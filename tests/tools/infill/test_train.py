"""The toy of infilling: its loss, a few steps of training, and a bundle of its checkpoint that fills a hole."""

import random
from collections.abc import Iterator
from itertools import islice
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner
from tokenizers import Tokenizer

torch = pytest.importorskip("torch")

from safetensors.numpy import load_file  # noqa: E402
from tools.infill.batches import Batch, batch_of  # noqa: E402
from tools.infill.problems import Problem  # noqa: E402
from tools.infill.train import loss_of, main, network_from_checkpoint, trained_network, training_texts  # noqa: E402

from lopa import Decoder, Hole  # noqa: E402
from lopa.export.bundle_from_checkpoint import bundle_from_checkpoint  # noqa: E402
from lopa.tiny import CHECKPOINT  # noqa: E402

TOKENIZER = Tokenizer.from_file(str(CHECKPOINT / "tokenizer.json"))


@pytest.fixture(autouse=True)
def _one_thread() -> Iterator[None]:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def batch(seed: int, texts: int) -> Batch:
    rng = random.Random(seed)
    return batch_of(islice(training_texts(rng), texts), TOKENIZER, rng)


def test_the_loss_is_the_mean_over_masked_tokens_of_each_text_alone() -> None:
    network, given = network_from_checkpoint(CHECKPOINT), batch(2, 5)
    losses = []
    for ids, labels, is_text in zip(given.ids, given.labels, given.is_text, strict=True):
        tokens = torch.from_numpy(ids[is_text])[None]
        with torch.no_grad():
            hidden = network.model(tokens, attention_mask=torch.zeros(1, 1, *(tokens.shape[1],) * 2))
            rows = network.lm_head(hidden.last_hidden_state)[0].double().numpy()
        for position in np.flatnonzero(tokens[0].numpy() == 2):
            row = rows[position - 1]
            losses.append(np.log(np.exp(row - row.max()).sum()) + row.max() - row[labels[position]])
    with torch.no_grad():
        assert loss_of(network, given).item() == pytest.approx(np.mean(losses), rel=1e-4)


def test_a_row_attends_to_both_sides() -> None:
    network = network_from_checkpoint(CHECKPOINT)

    def loss(tokens: list[int]) -> float:
        ids = np.array([tokens])
        with torch.no_grad():
            return loss_of(network, Batch(ids, np.full(ids.shape, 60), np.ones(ids.shape, np.bool_))).item()

    losses = [loss(tokens) for tokens in ([1, 50, 2, 70], [1, 50, 2, 71], [1, 51, 2, 70])]
    assert len(set(losses)) == 3


def test_held_out_problems_are_not_trained_on() -> None:
    questions = [source.pieces[0] for source in islice(training_texts(random.Random(3)), 300)]
    problems = [text for text in questions if text.startswith("Question")]
    assert 200 < len(problems) < 280
    assert not any(Problem(text, "", (), "", 0, True).is_held_out for text in problems)


def test_the_loss_falls() -> None:
    unseen = batch(11, 8)
    with torch.no_grad():
        before = loss_of(network_from_checkpoint(CHECKPOINT), unseen).item()
    network, losses = trained_network(16, 0, batch_size=4)
    with torch.no_grad():
        after = loss_of(network, unseen).item()
    assert len(losses) == 16
    assert after < 0.8 * before


def test_a_trained_checkpoint_fills_a_hole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tools.infill.train.BATCH_SIZE", 2)
    out = tmp_path / "toy"
    run = CliRunner().invoke(main, [str(out), "--steps", "2"], catch_exceptions=False)
    assert run.exit_code == 0
    assert f"{out}: 2 batches in " in run.output
    assert sorted(path.name for path in out.iterdir()) == sorted(path.name for path in CHECKPOINT.iterdir())
    new, old = load_file(out / "model.safetensors"), load_file(CHECKPOINT / "model.safetensors")
    assert new.keys() == old.keys()
    assert all((new[name] != old[name]).any() for name in old)

    again = network_from_checkpoint(out).state_dict()
    assert all((again[name].numpy() == new[name]).all() for name in new)

    bundle_from_checkpoint(out, tmp_path / "bundle", lora=None)
    with Decoder.open(tmp_path / "bundle") as decoder:
        result = decoder.fill(["Question: Tom has 3 cards.\nAnswer: First, Tom has", Hole(3), " cards. Now"])
    assert result.filled_text is not None
    assert result.filled_text.startswith("Question: Tom has 3 cards.\nAnswer: First, Tom has")
    assert result.filled_text.endswith(" cards. Now")
