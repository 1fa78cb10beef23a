"""Decisions of published strategies, recorded or made by plain rules with other settings."""

import copy
from typing import Any

import numpy as np
import pytest
from tests.conformance.plain.strategy_recorder import DrawnModel, freedave_trace, wino_trace
from tests.conformance.strategy_recordings import (
    RECORDINGS,
    UnknownSettingError,
    counted,
    decisions_of_file,
    decisions_of_trace,
)

NUM_DECISIONS = {
    "static_b32_g64": (372, 0, 0),
    "parallel_t09_b32_g64": (92, 0, 0),
    "freedave_d4_b32_g64": (1433, 185, 0),
    "freedave_d4_b64_g64": (1513, 191, 0),
    "freedave_d8_b32_g64_dual": (2492, 171, 0),
    "freedavepp_d4_t09_b32_g64": (694, 70, 0),
    "wino_t06_b09_b32_g64": (229, 0, 257),
    "wino_t07_b05_b32_g64": (170, 0, 110),
}


@pytest.mark.parametrize("path", sorted(RECORDINGS.glob("*.jsonl.gz")), ids=lambda path: path.name.split(".")[0])
def test_recorded_decisions(path: Any) -> None:
    found = counted(decisions_of_file(path))
    assert (found["state"], found["draft"], found["remasked"]) == NUM_DECISIONS[path.name.split(".")[0]]
    assert found["different"] == 0
    assert found["tie"] <= 0.1 * found["state"]  # positions near probability 1 tie; most decisions do not


@pytest.mark.parametrize("seed", range(24))
def test_freedave_with_other_settings(seed: int) -> None:
    """Drafts, thresholds, tests, lengths and acceptance rates vary."""
    rng = np.random.default_rng(seed)
    threshold = None if seed % 3 == 0 else float(rng.choice([0.5, 0.75, 0.9, 0.99]))
    length = int(rng.choice([1, 7, 16, 40]))
    model = DrawnModel(seed, length, steady=float(rng.choice([1.0, 3.0, 30.0])))
    header, trace = freedave_trace(
        model,
        length,
        draft_steps=int(rng.choice([1, 2, 3, 16])),
        threshold=threshold,
        rule=str(rng.choice(["subset", "exact"])),
    )
    found = counted(decisions_of_trace(header, trace))
    assert (found["different"], found["tie"]) == (0, 0)
    assert found["state"] >= 2
    assert found["draft"] >= 1


def test_random_models_accept_and_reject_drafts() -> None:
    accepted = set()
    for steady in (1.0, 30.0):
        _, trace = freedave_trace(DrawnModel(3, 40, steady=steady), 40, draft_steps=4, threshold=None, rule="exact")
        accepted |= {step["accepted"] for step in trace["steps"] if step["op"] == "verify"}
    assert accepted == {0, 1, 2, 3}


@pytest.mark.parametrize("seed", range(24))
def test_wino_with_other_settings(seed: int) -> None:
    rng = np.random.default_rng(100 + seed)
    block = int(rng.choice([1, 4, 16, 48]))
    low, back = float(rng.choice([0.3, 0.6, 0.9])), float(rng.choice([0.4, 0.7, 0.95]))
    model = DrawnModel(seed, 96, steady=float(rng.choice([1.0, 3.0])))
    header, trace = wino_trace(model, 96, block, low=low, back=back)
    found = counted(decisions_of_trace(header, trace))
    assert (found["different"], found["tie"]) == (0, 0)
    assert found["state"] == len(trace["steps"])


def test_random_answers_of_wino_remask_up_to_the_limit() -> None:
    header, trace = wino_trace(DrawnModel(5, 96, steady=1.0), 96, 48, low=0.3, back=0.95)
    assert counted(decisions_of_trace(header, trace))["remasked"] > 20


def freedave() -> tuple[dict[str, Any], dict[str, Any]]:
    return freedave_trace(DrawnModel(1, 12, steady=3.0), 12, draft_steps=3, threshold=0.9, rule="subset")


@pytest.mark.parametrize(
    ("option", "value", "message"),
    [
        ("temperature", 0.7, "temperature 0.7: known is 0"),
        ("draft_mode", "tree_attention", "draft_mode 'tree_attention': known is 'batch_expanding'"),
        ("alg_temp", 0.1, "alg_temp 0.1"),
        ("new_option", 1, "new_option 1: known are temperature"),
    ],
)
def test_an_unknown_setting_is_named(option: str, value: object, message: str) -> None:
    header, trace = freedave()
    header["params"][option] = value
    with pytest.raises(UnknownSettingError, match=message):
        counted(decisions_of_trace(header, trace))


def test_an_unknown_rule_is_named() -> None:
    header, trace = freedave()
    with pytest.raises(UnknownSettingError, match="alg 'saber'"):
        counted(decisions_of_trace(header | {"alg": "saber"}, trace))
    other = copy.deepcopy(trace)
    next(step for step in other["steps"] if step["op"] == "verify")["rule"] = "prefix"
    with pytest.raises(UnknownSettingError, match="rule 'prefix'"):
        counted(decisions_of_trace(header, other))
    next(step for step in trace["steps"] if step["op"] == "transfer")["threshold"] = 0.8
    with pytest.raises(UnknownSettingError, match=r"threshold 0\.8"):
        counted(decisions_of_trace(header, trace))


@pytest.mark.parametrize("what", ["token", "fewer", "accepted", "kept"])
def test_a_different_decision_is_detected(what: str) -> None:
    if what == "kept":
        header, trace = wino_trace(DrawnModel(5, 48, steady=1.0), 48, 48, low=0.3, back=0.95)
        states = [step["x"] for step in trace["steps"]]
        number, at = next(
            (number, at)
            for number in range(1, len(states))
            for at in range(48)
            if states[number - 1][at] != 2 == states[number][at]
        )
        trace["steps"][number]["x"][at] = states[number - 1][at]
    else:
        header, trace = freedave()
        transfers = [step for step in trace["steps"] if step["op"] == "transfer"]
        if what == "token":
            out = transfers[0]["out"][-1]
            out[next(at for at, token in enumerate(out) if token != 2)] += 1
        elif what == "fewer":
            out = transfers[0]["out"][-1]
            out[next(at for at, token in enumerate(out) if token != 2)] = 2
        else:
            next(step for step in trace["steps"] if step["op"] == "verify")["accepted"] += 1
    assert counted(decisions_of_trace(header, trace))["different"] >= 1
