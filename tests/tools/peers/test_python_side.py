"""All Python sides compute the same windows after a prefix that each computes itself."""

import subprocess
import sys
from pathlib import Path

import numpy as np
import torch
from tools.peers.python_side import SessionForwards, windows_of_tokens

from lopa.bench.speed.eager_model import eager_model_from_checkpoint
from lopa.bench.speed.eager_session import EagerSession
from lopa.runtime.bundle import Bundle
from lopa.runtime.contract import Int64, Statistics
from lopa.runtime.sessions.session import Session, open_session
from lopa.tiny import ADAPTER, CHECKPOINT

ROOT = Path(__file__).resolve().parents[3]
PREFIX, SHAPE = 20, (3, 8)


def statistics_of(session: Session, tokens: Int64) -> Statistics:
    """Return the statistics of windows of SHAPE after a prefix."""
    forwards = SessionForwards(session)
    forwards.first(tokens[:5])
    forwards.prefix(tokens[:PREFIX])
    forwards.windows(tokens[PREFIX:].reshape(SHAPE))
    forwards.run()
    assert forwards.found is not None
    return forwards.found


def test_a_prefix_and_windows_against_one_forward_of_everything(tiny_bundle: Path) -> None:
    """Compare a bundle's windows with torch on prefix and window at once, with a prefix that only sees itself."""
    bundle = Bundle.open(tiny_bundle)
    tokens = np.random.default_rng(0).integers(bundle.manifest.dimensions.vocab_size, size=PREFIX + 3 * 8)
    session = open_session(bundle, "cpu", threads=1)
    found = statistics_of(session, tokens)
    session.close()
    model = eager_model_from_checkpoint(CHECKPOINT, ADAPTER)
    for branch in range(3):
        window = tokens[PREFIX + 8 * branch : PREFIX + 8 * (branch + 1)]
        whole = torch.from_numpy(np.concatenate([tokens[:PREFIX], window]))[None]
        seen = torch.zeros(1, 1, PREFIX + 8, PREFIX + 8)
        seen[..., :PREFIX, PREFIX:] = -torch.inf
        with torch.inference_mode():
            logits, _ = model(whole, torch.arange(PREFIX + 8)[None], seen, None)
        logprobs, ids = torch.log_softmax(logits[0, PREFIX:].double(), dim=-1).topk(1)
        np.testing.assert_array_equal(found.topk_ids[0, branch, :, :1], ids)
        np.testing.assert_allclose(found.topk_logprobs[0, branch, :, :1], logprobs, atol=1e-4)


def test_preparing_again_gives_the_same_result(tiny_bundle: Path) -> None:
    """Preparing again releases the earlier prefix on every side."""
    tokens = np.random.default_rng(1).integers(500, size=(2, PREFIX + 3 * 8))
    model = eager_model_from_checkpoint(CHECKPOINT, ADAPTER)
    for session in (EagerSession(model, together=True), open_session(Bundle.open(tiny_bundle), "cpu", threads=1)):
        once = statistics_of(session, tokens[0])
        statistics_of(session, tokens[1])
        again = statistics_of(session, tokens[0])
        np.testing.assert_array_equal(once.topk_logprobs, again.topk_logprobs)
        session.close()


def test_windows_see_themselves_and_sample_their_last_rows() -> None:
    batch = windows_of_tokens(np.arange(24).reshape(SHAPE), start=PREFIX, sampled=8)
    assert batch.window_mask.all()
    np.testing.assert_array_equal(batch.position_ids[0, 2], np.arange(PREFIX, PREFIX + 8))
    np.testing.assert_array_equal(batch.logits_index[0, 1], np.arange(8))
    fewer = windows_of_tokens(np.arange(24).reshape(SHAPE), start=0, sampled=1)
    np.testing.assert_array_equal(fewer.logits_index[0], [[7]] * 3)


def test_a_process_reports_missing_requirements(tiny_bundle: Path) -> None:
    words = ["-m", "tools.peers.python_side", "lopa", "f32", str(tiny_bundle / "nothing"), "1"]
    done = subprocess.run([sys.executable, *words], cwd=ROOT, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (2, "")
    assert "error: " in done.stderr
