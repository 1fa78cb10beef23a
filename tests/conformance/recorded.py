"""Recorded traces of the published implementation, and comparison with our steps.

LOPA_TEST_DEVICE names the device of these comparisons, such as cuda:{}, where {} is the number of a session. With
`pytest --junit-xml FILE tests/conformance`, FILE has the counts of each recording.
"""

import gzip
import json
import os
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from tests.lone_decode import LoneDecode
from tests.params import params_of

from lopa.bench.buckets.forward_recording import Recording
from lopa.runtime.bundle import Bundle, sha256_of_file
from lopa.runtime.bundle.buckets import ShapeSource
from lopa.runtime.bundle.manifest import Manifest
from lopa.runtime.contract import Int64, tiles
from lopa.runtime.contract.sizes import Sizes
from lopa.runtime.decoding.step import Step
from lopa.runtime.generation_config import GenerationConfig
from lopa.runtime.multi_device.branch_session import BranchParallelSession
from lopa.runtime.options.option import Confidence
from lopa.runtime.sessions.session import Session, open_session
from lopa.runtime.state.packed_rows import SharingTest

TRACES = Path(__file__).resolve().parents[1] / "reference" / "traces"
NEAR_TIE = 1e-4
"""Recorded margins below this may be ordered differently by another float32 rounding."""
CONFIDENCE_TOLERANCE = 1e-4
DEVICE = os.environ.get("LOPA_TEST_DEVICE", "cpu")
Record = Callable[[str, object], None]

_CONFIDENCE: dict[str, Confidence] = {"neg_entropy": "neg_entropy", "default": "probability", "margin": "margin"}


def trace_files() -> list[Path]:
    return sorted(TRACES.glob("*.jsonl.gz"))


def read_traces(path: Path) -> tuple[GenerationConfig, list[dict[str, Any]]]:
    """Return the file's decoding options in our terms, and its traces."""
    with gzip.open(path, "rt") as lines:
        header, *traces = map(json.loads, lines)
    params = header["params"]
    lopa = params["use_uncertainty_logic"]
    lookaheads = params["branching_factor"] if lopa and params["branching_factor"] > 1 else 0
    config = GenerationConfig(
        reference=True,
        strategy="lopa" if lopa else "d2f",
        branches=lookaheads + 1 if lopa else None,
        block_size=params["block_size"],
        block_add_threshold=params["block_add_threshold"],
        decoded_token_threshold=params["decoded_token_threshold"],
        skip_threshold=params["skip_threshold"],
        confidence=_CONFIDENCE[params["sampling_strategy"]],
        attention="full" if params["use_full_attention"] else "block_causal",
        max_new_tokens=params["max_new_tokens"],
        stop_at_eos=header["eos_token_id"] >= 0,
    )
    return config, traces


def changed_copy(path: Path, folder: Path, change: Callable[[Any, Any], object], traces: int = 1) -> Path:
    """Return a copy of the first `traces` traces of a file, changed by `change(header, last trace)`."""
    with gzip.open(path, "rt") as lines:
        header, *found = (json.loads(next(lines)) for _ in range(1 + traces))
    change(header, found[-1])
    with gzip.open(folder / path.name, "wt") as file:
        file.writelines(json.dumps(line) + "\n" for line in (header, *found))
    return folder / path.name


@dataclass
class Comparison:
    """The comparison of one trace.

    A choice may differ only at a recorded near-tie, which ends the comparison.
    """

    steps: int = 0
    near_ties: int = 0
    route_ties: int = 0
    """Steps at which a router's choice of experts is a near-tie."""
    diverged_at: int | None = None
    mismatch: str | None = None
    named: str | None = None
    """Names of the margins at which the comparison ended, or None."""

    @property
    def whole(self) -> bool:
        return self.mismatch is None and self.diverged_at is None


def compare(trace: dict[str, Any], steps: list[Step], generated: Int64) -> Comparison:
    """Compare `steps` with the recorded ones, in order, then the ids and the number of steps."""
    result = Comparison()
    if len(trace["steps"]) != trace["forward_rounds"]:
        found = f"{len(trace['steps'])} recorded steps and forward_rounds {trace['forward_rounds']}"
        result.mismatch = f"prompt {trace['i']}: {found}"
        return result
    # The numbers of steps are compared behind the steps, of which one may end the comparison.
    for recorded, step in zip(trace["steps"], steps, strict=False):
        result.steps += 1
        near_tie = _smallest_margin(recorded) < NEAR_TIE
        result.near_ties += near_tie
        wrong = next(_differences(recorded, step), None)
        if wrong is None:
            continue
        if near_tie and _one_of_the_tied(recorded, step):
            result.diverged_at = step.number
        else:
            result.mismatch = f"prompt {trace['i']} step {step.number}: {wrong}"
        return result
    if len(steps) != trace["forward_rounds"]:
        result.mismatch = f"prompt {trace['i']}: {len(steps)} steps, recorded {trace['forward_rounds']}"
    elif generated.tolist() != trace["generated_ids"]:
        result.mismatch = f"prompt {trace['i']}: other ids than recorded"
    return result


def comparisons_of_file(
    path: Path, session: Session, manifest: Manifest, *, limit: int | None = None, sharing: SharingTest | None = None
) -> list[Comparison]:
    """Decode every prompt of a file of traces, or the first ones, and compare; `sharing` as in RunningLoop."""
    config, traces = read_traces(path)
    comparisons = []
    for trace in traces[:limit]:
        decoding = LoneDecode(session, prompt_of(trace), params_of(config), manifest, sharing=sharing)
        comparisons.append(compare(trace, decoding.run(), decoding.answer.generated))
    return comparisons


def open_test_device(bundle: Bundle, devices: int = 1) -> Session:
    """Open a session on the device of LOPA_TEST_DEVICE, or on several that share the branches."""
    sessions = [open_session(bundle, DEVICE.format(number), threads=1) for number in range(devices)]
    return sessions[0] if devices == 1 else BranchParallelSession(sessions)


def check_comparisons(found: Sequence[Comparison], record: Record) -> None:
    """Check that nothing differs, but at most one trace, or a tenth of them, at a near-tie. Record the counts."""
    mismatches = [each.mismatch for each in found if each.mismatch is not None]
    assert not mismatches, "\n".join(mismatches)
    diverged = [each.named for each in found if not each.whole]
    assert len(diverged) <= max(1, len(found) // 10), f"too many differences at near-ties: {diverged}"
    record("traces", len(found))
    record("diverged", len(diverged))
    for name in ("steps", "near_ties", "route_ties"):
        record(name, sum(getattr(each, name) for each in found))


def assert_reproduced(name: str, session: Session, manifest: Manifest, *, limit: int) -> None:
    """Compare the first prompts of a file of traces. At most one may differ, at a near-tie."""
    found = comparisons_of_file(TRACES / f"{name}.jsonl.gz", session, manifest, limit=limit)
    check_comparisons(found, lambda *_: None)


def recording_of_file(path: Path) -> Recording:
    """Return the forwards of a file of traces, as input of the planner."""
    config, traces = read_traces(path)
    requests = tuple(tuple(map(_sizes_of_recorded, trace["steps"])) for trace in traces)
    source = ShapeSource(name=path.name, sha256=sha256_of_file(path), forwards=sum(map(len, requests)))
    return Recording(requests, (params_of(config),), max(len(trace["prompt_ids"]) for trace in traces), (source,))


def _sizes_of_recorded(step: dict[str, Any]) -> Sizes:
    branches = step["branches"]
    masked = max(branch["masks_in_window"] for branch in branches)
    return Sizes(
        requests=1,
        branches=len(branches),
        window=max(branch["input_len"] for branch in branches),
        prefix=tiles(step["cache_len"]),
        wanted=max(1, masked + bool(step["update_kvcache_len"])),
    )


def _differences(recorded: dict[str, Any], step: Step) -> Iterator[str]:
    """Yield all differences between a step and the recorded one, states and inputs before choices."""
    rows, branches = step.rows, recorded["branches"]
    ours = {
        "number of branches": (len(step.branches), recorded["n_branches"]),
        "window start": (rows.prefix, recorded["input_start"]),
        "prefix": (rows.prefix, recorded["cache_len"]),
        "commit": (rows.commit, recorded["update_kvcache_len"]),
        "window lengths": (list(rows.branch_lengths), [branch["input_len"] for branch in branches]),
        "masked positions": (
            [len(each) for each in rows.sampled],
            [branch["masks_in_window"] for branch in branches],
        ),
        "ended": ([branch.ended for branch in step.branches], [branch["eos"] for branch in branches]),
        "tokens": ([_crc(branch.tokens) for branch in step.branches], [branch["x_crc"] for branch in branches]),
        "blocks": (_blocks(step), [block[1:] for block in recorded["blocks"]]),
    }
    if "dup_base" in recorded:
        ours["two identical branches"] = (len({*map(_contents, branches)}) < len(branches), recorded["dup_base"])
    for name, (found, expected) in ours.items():
        if found != expected:
            yield f"{name} {found}, recorded {expected}"
    for number, (confidence, branch) in enumerate(zip(step.confidences, branches, strict=False)):
        if "conf" in branch and abs(confidence - branch["conf"]) > CONFIDENCE_TOLERANCE:
            yield f"confidence of branch {number} {confidence}, recorded {branch['conf']}"
    winner = recorded["winner"]
    # Two identical anchors (quirk 2): rounding decides which one wins, and nothing depends on it.
    if step.winner != winner and [_contents(branches[step.winner])] != [*map(_contents, branches[winner : winner + 1])]:
        yield f"winner {step.winner}, recorded {winner}"
    if (
        "winner_conf" in recorded
        and abs(step.confidences[step.winner] - recorded["winner_conf"]) > CONFIDENCE_TOLERANCE
    ):
        yield f"confidence of the winner {step.confidences[step.winner]}, recorded {recorded['winner_conf']}"
    fills = [list(pair) for pair in zip(step.unmasked.positions.tolist(), step.unmasked.tokens.tolist(), strict=True)]
    if fills != recorded["fills"]:
        yield f"fills {fills}, recorded {recorded['fills']}"
    if "spawn" in recorded:
        found = [[each.position, each.token] for each in step.lookaheads]
        expected = [each[:2] for each in recorded["spawn"]["lookaheads"]]
        if found != expected:
            yield f"lookaheads {found}, recorded {expected}"


def _contents(branch: Mapping[str, Any]) -> object:
    """Return what determines a recorded branch's forward."""
    return branch["input_len"], branch["x_crc"]


def _one_of_the_tied(recorded: dict[str, Any], step: Step) -> bool:
    """Return True if our winner's recorded confidence is a near-tie with the best."""
    branches = recorded["branches"]
    if "conf" not in branches[0]:
        return True
    return step.winner < len(branches) and branches[step.winner]["conf"] > recorded["winner_conf"] - NEAR_TIE


def _smallest_margin(recorded: dict[str, Any]) -> float:
    spawn = recorded.get("spawn", {})
    margins = [
        None if recorded.get("dup_base") else recorded.get("margin"),
        recorded.get("thr_margin"),
        recorded.get("fallback_margin"),
        recorded.get("fill_token_margin"),
        *spawn.get("rank_margins", []),
        *spawn.get("token_margins", []),
    ]
    return min((margin for margin in margins if margin is not None), default=float("inf"))


def _crc(tokens: Int64) -> int:
    return zlib.crc32(tokens.astype("<i4").tobytes())


def _blocks(step: Step) -> list[list[Any]]:
    return [
        [block.start, block.end, block.masks, block.state.value, block.fully_activated]
        for block in step.branches[-1].blocks
    ]


def prompt_of(trace: dict[str, Any]) -> Int64:
    return np.array(trace["prompt_ids"], np.int64)
