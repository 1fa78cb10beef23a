"""Both sides make the same steps, and ratios and shares follow from their seconds. No test measures time."""

import shutil
from pathlib import Path

import onnxruntime as ort
import pytest
import torch

from lopa.bench.eval_set import eval_set_from_jsonl
from lopa.bench.speed.engine_clock import time_engine_calls
from lopa.bench.speed.speed_measurement import eager_decoder, measure_speed, torch_threads
from lopa.bench.speed.speed_report import ROUNDS, StepTime, TimedDecode, measured_from_turns
from lopa.runtime.decoder import Decoder
from lopa.runtime.errors import BadInputError, CheckFailedError
from lopa.tiny import ADAPTER, CHECKPOINT, EVAL


def decoded(ids: tuple[int, ...], *steps: tuple[int, float, float, float | None]) -> TimedDecode:
    return TimedDecode(ids, tuple(StepTime(*step) for step in steps))


def test_both_sides_make_the_same_steps(tiny_bundle: Path) -> None:
    items = eval_set_from_jsonl(EVAL, limit=1)
    with Decoder.open(tiny_bundle, threads=1) as ours:
        config = ours.config(reference=True, branches=5)
        steps = sum(result.steps for result in ours.generate([item.prompt for item in items], config))
        progress_calls: list[int] = []
        eager = eager_decoder(ours, CHECKPOINT, ADAPTER)
        measured = measure_speed(ours, eager, items, config, threads=1, progress=progress_calls.append)
    assert measured.same_tokens
    assert measured.other_tokens == ()
    assert (measured.rounds, measured.prompts) == (ROUNDS, len(items))
    assert progress_calls == list(range(1, ROUNDS * len(items) + 1))
    assert measured.all_steps is not None
    assert measured.full_steps is not None
    assert measured.all_steps.steps == measured.outside.steps == ROUNDS * steps
    assert 0 < measured.full_steps.steps < measured.all_steps.steps
    assert 0 < measured.outside.outside_forward < measured.outside.outside_call < 1


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


def test_ratios_and_shares() -> None:
    ours = decoded((1,), (1, 0.004, 0.003, 0.002), (5, 0.020, 0.018, 0.016))
    eager = decoded((1,), (1, 0.008, 0.007, None), (5, 0.060, 0.050, None))
    found = measured_from_turns([(ours, eager)], prompts=1, branches=5)
    assert found.all_steps is not None
    assert found.full_steps is not None
    assert found.outside_long_calls is not None
    assert found.all_steps.ratio_of_totals == pytest.approx(68 / 24)
    assert found.all_steps.ratio_of_medians == pytest.approx(34 / 12)
    assert found.ratio_by_prompt_median == pytest.approx(68 / 24)
    assert (found.full_steps.steps, found.full_steps.ratio_of_medians) == (1, pytest.approx(3))
    assert found.outside.outside_call == pytest.approx(1 - 18 / 24)
    assert found.outside.outside_forward == pytest.approx(1 - 21 / 24)
    assert (found.outside_long_calls.steps, found.outside_long_calls.outside_call) == (1, pytest.approx(0.2))


def test_prompts_with_different_tokens_are_excluded() -> None:
    same = decoded((1,), (5, 0.004, 0.003, 0.002)), decoded((1,), (5, 0.008, 0.007, None))
    other = decoded((1,), (5, 0.1, 0.1, 0.1)), decoded((2,), (5, 0.9, 0.9, None), (5, 0.9, 0.9, None))
    found = measured_from_turns([same, other, same, other], prompts=2, branches=5)
    assert not found.same_tokens
    assert found.other_tokens == (1,)
    assert found.all_steps is not None
    assert (found.all_steps.steps, found.all_steps.ratio_of_totals) == (2, pytest.approx(2))
    assert found.outside.steps == 4
    nothing = measured_from_turns([other], prompts=1, branches=5)
    assert nothing.all_steps is None
    assert nothing.ratio_by_prompt_median is None


def test_missing_long_calls_and_full_steps() -> None:
    turn = decoded((1,), (2, 0.004, 0.003, 0.0099)), decoded((1,), (2, 0.008, 0.007, None))
    found = measured_from_turns([turn], prompts=1, branches=5)
    assert found.full_steps is None
    assert found.outside_long_calls is None


def test_global_settings_are_restored() -> None:
    threads, run = torch.get_num_threads(), ort.InferenceSession.run_with_iobinding
    seen = []

    def fail() -> None:
        with torch_threads(threads + 1), time_engine_calls():
            seen.append((torch.get_num_threads(), ort.InferenceSession.run_with_iobinding))
            raise KeyError

    with pytest.raises(KeyError):
        fail()
    assert seen[0][0] == threads + 1
    assert seen[0][1] is not run
    assert torch.get_num_threads() == threads
    assert ort.InferenceSession.run_with_iobinding is run


@pytest.mark.parametrize("device", ["cpu", "openvino:CPU"])
def test_the_clock_measures_one_call_per_step(tiny_bundle: Path, device: str) -> None:
    if device != "cpu":
        pytest.importorskip("openvino")
    with Decoder.open(tiny_bundle, [device], threads=1) as decoder, time_engine_calls() as calls:
        (result,) = decoder.generate(["Question: "], decoder.config(branches=3, max_new_tokens=32))
    assert len(calls) == result.steps
    assert all(seconds > 0 for seconds in calls)
