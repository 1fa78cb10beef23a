"""Both sides make the same steps, and ratios and shares follow from their seconds. No test measures time."""

import shutil
from pathlib import Path

import pytest
import torch
from tests.runtime.shortened import assert_shortened_equals_fresh

from lopa.bench.eval_set import eval_set_from_jsonl
from lopa.bench.speed import speed_measurement
from lopa.bench.speed.eager_model import eager_model_from_checkpoint
from lopa.bench.speed.eager_session import EagerSession
from lopa.bench.speed.speed_measurement import eager_decoder, measure_speed, torch_threads
from lopa.bench.speed.speed_report import StepTime, TimedDecode, measured_from_turns
from lopa.runtime.decoder import Decoder
from lopa.runtime.errors import BadInputError, CheckFailedError
from lopa.tiny import ADAPTER, CHECKPOINT, EVAL


def decoded(ids: tuple[int, ...], *steps: tuple[int, float]) -> TimedDecode:
    return TimedDecode(ids, tuple(StepTime(*step) for step in steps))


def test_both_sides_make_the_same_steps(tiny_bundle: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(speed_measurement, "ROUNDS", 1)
    items = eval_set_from_jsonl(EVAL, limit=1)
    with Decoder.open(tiny_bundle, threads=1) as ours:
        config = ours.config(reference=True, branches=5)
        steps = sum(result.steps for result in ours.generate([item.prompt for item in items], config))
        progress_calls: list[int] = []
        eager = eager_decoder(ours, CHECKPOINT, ADAPTER)
        measured = measure_speed(ours, eager, items, config, threads=1, progress=progress_calls.append)
    assert measured.same_tokens
    assert measured.other_tokens == ()
    assert (measured.rounds, measured.prompts) == (1, len(items))
    assert progress_calls == list(range(1, len(items) + 1))
    assert measured.all_steps is not None
    assert measured.full_steps is not None
    assert measured.all_steps.steps == steps
    assert 0 < measured.full_steps.steps < measured.all_steps.steps


def test_another_checkpoint_is_rejected(tiny_bundle: Path, tmp_path: Path) -> None:
    other = Path(shutil.copytree(ADAPTER, tmp_path / "other"))
    weights = other / "adapter_model.safetensors"
    data = weights.read_bytes()
    weights.write_bytes(data[:-1] + bytes([data[-1] ^ 1]))
    with Decoder.open(tiny_bundle, threads=1) as ours:
        with pytest.raises(BadInputError, match="--lora is missing"):
            eager_decoder(ours, CHECKPOINT, None)
        with pytest.raises(CheckFailedError, match=r"adapter_model\.safetensors has another SHA-256"):
            eager_decoder(ours, CHECKPOINT, other)


def test_ratios() -> None:
    ours, eager = decoded((1,), (1, 0.004), (5, 0.020)), decoded((1,), (1, 0.008), (5, 0.060))
    found = measured_from_turns([(ours, eager)], prompts=1, branches=5)
    assert found.all_steps is not None
    assert found.full_steps is not None
    assert found.all_steps.ratio_of_totals == pytest.approx(68 / 24)
    assert found.all_steps.ratio_of_medians == pytest.approx(34 / 12)
    assert (found.full_steps.steps, found.full_steps.ratio_of_medians) == (1, pytest.approx(3))


def test_prompts_with_different_tokens_are_excluded() -> None:
    same = decoded((1,), (5, 0.004)), decoded((1,), (5, 0.008))
    other = decoded((1,), (5, 0.1)), decoded((2,), (5, 0.9), (5, 0.9))
    found = measured_from_turns([same, other, same, other], prompts=2, branches=5)
    assert not found.same_tokens
    assert found.other_tokens == (1,)
    assert found.all_steps is not None
    assert (found.all_steps.steps, found.all_steps.ratio_of_totals) == (2, pytest.approx(2))
    assert measured_from_turns([other], prompts=1, branches=5).all_steps is None
    few = decoded((1,), (2, 0.004)), decoded((1,), (2, 0.008))
    assert measured_from_turns([few], prompts=1, branches=5).full_steps is None


def test_the_number_of_threads_is_restored() -> None:
    threads = torch.get_num_threads()
    with pytest.raises(KeyError), torch_threads(threads + 1):
        raise KeyError(torch.get_num_threads())
    assert torch.get_num_threads() == threads


@pytest.mark.slow
def test_a_shortened_request_equals_a_fresh_one() -> None:
    model = eager_model_from_checkpoint(CHECKPOINT, ADAPTER)
    session = EagerSession(model)
    assert_shortened_equals_fresh(session, EagerSession(model), exact=True)
    with pytest.raises(ValueError, match="received count 1, expected one from 0 to 0, the committed rows"):
        session.shorten(1, 1)
