"""lopa-export generate: its output, its files, and its errors for bad usage."""

import json
import shutil
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest
from tests.cli.command import BROKEN_DEVICES, PROMPT, lopa_export
from tests.runtime.decoding.test_branch_budget import costs_with

from lopa.cli.decode.generate import branches_text
from lopa.cli.options.decoding_options import config_overrides
from lopa.runtime.bundle import Bundle
from lopa.runtime.bundle.costs import costs_name
from lopa.runtime.bundle.record import json_from_record


def test_the_prompt_is_an_argument_or_standard_input(tiny_bundle: Path) -> None:
    argument = lopa_export("generate", tiny_bundle, PROMPT)
    stdin = lopa_export("generate", tiny_bundle, stdin=PROMPT)
    assert (argument.returncode, stdin.returncode) == (0, 0)
    assert argument.stdout == stdin.stdout
    assert "####" in argument.stdout
    assert "tokens per forward" in argument.stderr
    assert "stopped by eos" in argument.stderr


def test_choices_are_scored(tiny_bundle_logits: Path) -> None:
    result = lopa_export("generate", tiny_bundle_logits, "Is 9 > 5?", "--choices", " yes", "--choices", " no")
    assert result.returncode == 0, result.stderr
    lines = [line.split("'") for line in result.stderr.splitlines() if "'" in line]
    shares = {text: float(share) for share, text, _ in lines}
    assert sorted(shares) == [" no", " yes"]
    assert result.stdout.rstrip("\n") == max(shares, key=lambda text: shares[text])
    assert sum(shares.values()) == pytest.approx(1, abs=1e-3)


def test_a_trace_has_a_header_and_every_step(tiny_bundle: Path, tmp_path: Path) -> None:
    trace = tmp_path / "trace.jsonl"
    result = lopa_export("generate", tiny_bundle, PROMPT, "--branches", 5, "--step-log", trace)
    header, *steps = map(json.loads, trace.read_text().splitlines())
    manifest = json.loads((tiny_bundle / "manifest.json").read_text())
    assert header["config"]["branches"] == 5
    assert header["bundle"] == {file["path"]: file["sha256"] for file in manifest["files"]}
    assert f"in {len(steps)} steps" in result.stderr
    assert [step["step"] for step in steps] == list(range(1, len(steps) + 1))
    for step in steps:
        confidences = [branch["confidence"] for branch in step["branches"]]
        assert step["winner"] == confidences.index(max(confidences))
        assert set(step["seconds"]) == {"windows", "forward", "select", "commit", "spawn"}
        assert step["branches"][-1]["lookahead"] is None
        assert all(branch["window"] <= step["window"] for branch in step["branches"])
        table = step["table"]
        assert list(table) == ["position", "token", "probability", "entropy", "unmasked", "branch"]
        rows = list(zip(*table.values(), strict=True))
        written = [[position, token] for position, token, _, _, unmasked, _ in rows if unmasked]
        assert all(fill in written for fill in step["unmasked"])
        assert {branch for *_, branch in rows} <= set(range(len(step["branches"])))
        assert all(0 < probability <= 1 and entropy >= -1e-6 for _, _, probability, entropy, _, _ in rows)
    assert sum(len(step["unmasked"]) for step in steps) > 20


def test_a_pipeline_needs_a_bundle_of_as_many_stages(tiny_staged: Path, tmp_path: Path) -> None:
    given = ("generate", tiny_staged, PROMPT, "--branches", 4, "--threads", 1)
    result = lopa_export(*given, "--device", "cpu+cpu")
    assert (result.returncode, result.stdout) == (0, lopa_export(*given).stdout)
    result = lopa_export("generate", tiny_staged, PROMPT, "--device", "cpu+cpu+cpu", "--step-log", tmp_path / "t.json")
    assert result.returncode == 2
    assert "--stages 3" in result.stderr
    assert list(tmp_path.iterdir()) == []


def test_drafts_are_shown_after_every_step(tiny_bundle: Path) -> None:
    plain = lopa_export("generate", tiny_bundle, PROMPT)
    drafts = lopa_export("generate", tiny_bundle, PROMPT, "--drafts")
    assert drafts.stdout == plain.stdout
    assert "░" in drafts.stderr
    assert drafts.stderr.count("\n") == plain.stderr.count("\n") + int(plain.stderr.split(" steps")[0].split()[-1])


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (["--block-size", "x"], 2, "'x' is not a valid integer"),
        (["--device", "cuda:0"], 3, "CUDAExecutionProvider"),
        (["--device", "cuda", "--device", "cuda:0"], 2, "devices 'cuda' and 'cuda:0' are the same"),
        (["--device", "cpu", "--device", "cpu:0"], 2, "cpu has every core"),
        (["--output", "out.jsonl"], 2, "--output needs --prompts"),
        (["--chat"], 2, "chat template"),
        (["--step-log", "no/such/folder/trace.jsonl"], 2, "cannot write no/such/folder/trace.jsonl"),
    ],
)
def test_bad_usage_is_one_clear_message(tiny_bundle: Path, arguments: list[str], code: int, message: str) -> None:
    result = lopa_export("generate", tiny_bundle, PROMPT, *arguments)
    assert (result.returncode, result.stdout) == (code, "")
    assert message in result.stderr
    assert "Traceback" not in result.stderr


def test_several_devices_give_the_same_text_and_their_share_of_each_forward(tiny_bundle: Path, tmp_path: Path) -> None:
    trace = tmp_path / "trace.jsonl"
    one = lopa_export("generate", tiny_bundle, PROMPT, "--branches", 5)
    two = lopa_export(
        "generate", tiny_bundle, PROMPT, "--branches", 5, "--device", "cpu:0", "--device", "numpy", "--step-log", trace
    )
    assert two.returncode == 0, two.stderr
    assert two.stdout == one.stdout
    for line in trace.read_text().splitlines()[1:]:
        step = json.loads(line)
        devices = step["split"]["devices"]
        assert [device["device"] for device in devices] == ["cpu:0", "numpy"][: len(step["branches"])]
        assert sum(device["branches"] for device in devices) == len(step["branches"])
        assert all(device["seconds"] > 0 for device in devices)
        assert step["split"]["gather"] > 0


def generate_with_broken(devices: str, bundle: Path) -> subprocess.CompletedProcess[str]:
    program = [sys.executable, "-c", BROKEN_DEVICES, devices, "generate", str(bundle), PROMPT, "--branches", "5"]
    return subprocess.run(
        [*program, "--device", "numpy", "--device", "cpu:0"], capture_output=True, text=True, check=False
    )


def test_a_device_that_fails_is_a_warning_and_the_text_the_same(tiny_bundle: Path) -> None:
    done = generate_with_broken("numpy", tiny_bundle)
    assert (done.returncode, done.stdout) == (0, lopa_export("generate", tiny_bundle, PROMPT, "--branches", 5).stdout)
    assert done.stderr.startswith("device numpy failed, the other devices continue: OSError: the fan stopped\n")


def test_the_last_device_failing_is_an_error(tiny_bundle: Path) -> None:
    done = generate_with_broken("numpy cpu:0", tiny_bundle)
    assert done.returncode == 3
    assert "error: no device is left" in done.stderr
    assert "cpu:0: OSError: the fan stopped" in done.stderr
    assert "Traceback" not in done.stderr


def test_a_random_seed(tiny_bundle: Path) -> None:
    options = ["--seed", "random", "--temperature", "1.5", "--skip-threshold", "0.5", "--max-new-tokens", "32"]
    assert lopa_export("generate", tiny_bundle, PROMPT, *options).returncode == 0
    assert lopa_export("generate", tiny_bundle, PROMPT, "--seed", "dice").returncode == 2
    for number in ("9" * 5000, "--3", "\u00b2"):
        done = lopa_export("generate", tiny_bundle, PROMPT, f"--seed={number}")
        assert (done.returncode, done.stdout) == (2, "")
        assert "error: invalid seed" in done.stderr
    assert config_overrides({"seed": 3, "top_k": None}) == {"seed": 3}


def test_numbers_of_branches_chosen_per_step_are_reported(tiny_bundle: Path, tmp_path: Path) -> None:
    bundle = Path(shutil.copytree(tiny_bundle, tmp_path / "bundle"))
    table = costs_with(Bundle.open(bundle).manifest.weights_digest, first=1.0, each=0.3)
    (bundle / costs_name("cpu")).write_bytes(json_from_record(table))
    prompts, trace = tmp_path / "in.jsonl", tmp_path / "trace.jsonl"
    prompts.write_text(2 * (json.dumps({"prompt": PROMPT}) + "\n"))
    for arguments in ([PROMPT], ["--prompts", prompts]):
        done = lopa_export("generate", bundle, *arguments, "--branches", "auto", "--threads", 1, "--step-log", trace)
        assert done.returncode == 0, done.stderr
        counts = [len(json.loads(line)["branches"]) for line in trace.read_text().splitlines()[1:]]
        assert min(counts) < max(counts)
        message = f"{min(counts)} to {max(counts)} branches per step, {sum(counts) / len(counts):.1f} on average"
        assert message in done.stderr
        assert "auto" not in done.stderr


@pytest.mark.parametrize(
    ("branches", "message"), [([], "no step"), ([1, 1], "1 branch in every step"), ([4], "4 branches in every step")]
)
def test_formatted_numbers_of_branches(branches: list[int], message: str) -> None:
    assert branches_text(Counter(branches)) == message
