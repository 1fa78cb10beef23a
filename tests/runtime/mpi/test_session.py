"""MPI jobs of 2 and 4 real processes: same results as one process, and behavior if a rank dies, fails or hangs."""

import json
from pathlib import Path

import pytest
from tests.runtime.mpi.mpi_runs import job, needs_mpi

from lopa import tiny
from lopa.runtime.decoder import Decoder

RANKS = "tests.runtime.mpi.mpi_ranks"
CONFIGS = [
    {"strategy": strategy, "attention": window, "block_size": 8, **branches}
    for strategy, branches in (("lopa", {"branches": 5}), ("d2f", {}))
    for window in ("full", "block_causal")
]


@needs_mpi
def test_tokens_match_one_process(tiny_bundle: Path, tmp_path: Path) -> None:
    ranks = 4
    prompts = [json.loads(line)["prompt"] for line in tiny.EVAL.read_text(encoding="utf-8").splitlines()[:2]]
    work = tmp_path / "work.json"
    work.write_text(json.dumps({"configs": CONFIGS, "prompts": prompts}))
    result = job((ranks, ["-m", RANKS, "decode", tiny_bundle, work]))
    assert result.returncode == 0, result.stderr
    found = [json.loads(line) for line in result.stdout.splitlines()]
    with Decoder.open(tiny_bundle, ["cpu"], threads=1) as decoder:
        expected = [each for config in CONFIGS for each in decoder.generate(prompts, decoder.config(**config))]
    assert [line["ids"] for line in found] == [list(each.token_ids) for each in expected]
    assert [line["steps"] for line in found] == [each.steps for each in expected]

    for number, line in enumerate(found):
        everywhere = CONFIGS[number // len(prompts)]["attention"] == "full"
        # With a block-causal window, rows are sent only after a forward that left a rank without a branch.
        sent = [branches for branches in line["committing"] if everywhere or branches < ranks]
        assert line["broadcasts"] == len(sent) > 0
    committing = [branches for line in found for branches in line["committing"]]
    assert max(committing) > ranks > min(committing)


@needs_mpi
def test_session_matches_one_process(tiny_bundle_logits: Path) -> None:
    result = job((3, ["-m", RANKS, "session", tiny_bundle_logits]))
    assert (result.returncode, result.stdout) == (0, "all the same\n"), result.stderr


@needs_mpi
@pytest.mark.parametrize(
    ("ranks", "rank", "kind", "method", "code", "message"),
    [
        (3, 2, "kill", "wait", None, "signal 9"),
        (2, 1, "kill", "append_rows", None, "signal 9"),
        (3, 1, "raise", "wait", 3, "error: rank 1 of 3 on "),
        (3, 2, "stop", "wait", 3, "rank 2 of the MPI job did not reply for"),
    ],
)
def test_failing_rank_ends_the_job(
    ranks: int, rank: int, kind: str, method: str, code: int | None, message: str, tiny_bundle: Path
) -> None:
    result = job((ranks, ["-m", RANKS, "fault", tiny_bundle, rank, kind, method]))
    assert result.returncode not in (0, None)
    assert code in (None, result.returncode)
    assert message in result.stdout + result.stderr
    assert ("the engine broke" in result.stderr) is (kind == "raise")


@needs_mpi
def test_rank_that_ends_before_mpi_starts_does_not_hang_the_job() -> None:
    wait = "import lopa.runtime.mpi.mpi_link as link; link._START_SECONDS = 2; link.rank_of_job().__enter__()"
    result = job((1, ["-c", wait]), (1, ["-c", "raise SystemExit(3)"]))
    assert result.returncode != 0
    assert "Timeout" in result.stderr or "exited" in result.stderr
