"""lopa-export plan: traces as input; a plan, tables and a plot as output; bad usage."""

import json
import shutil
from pathlib import Path

import pytest
from tests.cli.command import PROMPT, lopa_export
from tests.runtime.bundle.test_costs import costs_of

from lopa.runtime.bundle import Bundle
from lopa.runtime.bundle.buckets import BucketTable, bucket_plan_from_file
from lopa.runtime.bundle.record import json_from_record
from lopa.runtime.sessions.session import open_session


@pytest.fixture(scope="module")
def bundle(tiny_bundle: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a private copy of the bundle, since the tests write a plan into it."""
    return Path(shutil.copytree(tiny_bundle, tmp_path_factory.mktemp("plan") / "bundle"))


@pytest.fixture(scope="module")
def trace(bundle: Path) -> Path:
    path = bundle.parent / "trace.jsonl"
    prompts = bundle.parent / "prompts.jsonl"
    prompts.write_text("".join(json.dumps({"prompt": PROMPT[:length]}) + "\n" for length in (20, 60, 200)))
    done = lopa_export("generate", bundle, "--prompts", prompts, "--step-log", path, "--branches", 3, "--threads", 1)
    assert done.returncode == 0, done.stderr
    return path


def test_a_plan_from_a_trace(bundle: Path, trace: Path) -> None:
    done = lopa_export("plan", bundle, "--step-log", trace, "--buckets", 3, "--max-prompt", 100)
    assert done.returncode == 0, done.stderr
    steps = [json.loads(line) for line in trace.read_text().splitlines()][1:]
    assert f"{len(steps)} recorded forwards" in done.stdout
    schemes = done.stdout.split("Expected time of a forward")[1].splitlines()[4:]
    assert [line.split("|")[1].strip() for line in schemes if line] == ["no padding", "this plan, 3 buckets"]
    assert "no better choice exists" in done.stdout or "a better choice saves at most" in done.stdout

    plan = bucket_plan_from_file(bundle / "shape_buckets.json", Bundle.open(bundle))
    assert len(plan.buckets) == 3
    last = plan.buckets[-1]
    assert (last.branches, last.window, last.prefix, last.wanted) == (3, 256, 384, 256)
    assert plan.expected.no_padding_seconds <= plan.expected.seconds
    assert 0.9 * plan.expected.seconds < plan.expected.least_seconds <= plan.expected.seconds
    assert plan.costs.kind == "modelled"
    assert [source.name for source in plan.sources] == ["trace.jsonl"]
    assert sum(source.forwards for source in plan.sources) == len(steps)
    BucketTable(plan.buckets)
    open_session(Bundle.open(bundle), "cpu", threads=1).close()  # a bundle with a plan still opens
    (bundle / "shape_buckets.json").unlink()


def test_without_a_trace_prompts_are_decoded_and_the_plan_can_go_elsewhere_as_json(
    bundle: Path, tmp_path: Path
) -> None:
    costs, output = tmp_path / "costs.json", tmp_path / "plan.json"
    costs.write_bytes(json_from_record(costs_of(Bundle.open(bundle))))
    done = lopa_export("plan", bundle, "--costs", costs, "-o", output, "--json", "--max-num-seqs", 4, "--memory", 1)
    assert done.returncode == 0, done.stderr
    assert done.stdout == output.read_text()
    assert not (bundle / "shape_buckets.json").exists()
    plan = json.loads(done.stdout)
    assert plan["costs"]["kind"] == "measured"
    assert "16 prompts, decoded now" in plan["sources"][0]["name"]
    assert max(bucket["requests"] for bucket in plan["buckets"]) == 4


def test_prompts_are_decoded_on_the_cpu_if_the_device_has_no_engine_yet(bundle: Path, tmp_path: Path) -> None:
    device = "ascend:0"
    done = lopa_export("plan", bundle, "--device", device, "--buckets", 3, "-o", tmp_path / "plan.json")
    assert done.returncode == 0, done.stderr
    plan = json.loads((tmp_path / "plan.json").read_text())
    assert (plan["costs"]["device"], plan["costs"]["kind"]) == (device, "modelled")
    assert plan["sources"][0]["forwards"] > 16


def test_a_trace_without_a_size_is_rejected(bundle: Path, trace: Path, tmp_path: Path) -> None:
    other = tmp_path / "trace.jsonl"
    other.write_text(trace.read_text().replace('"sampled": ', '"rows": '))
    done = lopa_export("plan", bundle, "--step-log", other, "-o", tmp_path / "plan.json")
    assert done.returncode == 2
    assert "missing required field `sampled`" in done.stderr


def test_building_time_limits_the_buckets(bundle: Path, trace: Path, tmp_path: Path) -> None:
    arguments = ("plan", bundle, "--step-log", trace, "--json", "-o", tmp_path / "plan.json")
    done = lopa_export(*arguments, "--build-seconds", 500, "--build-seconds-per-bucket", 240)
    assert len(json.loads(done.stdout)["buckets"]) == 2


def damaged(trace: Path, target: Path, damage: str) -> Path:
    header, first, *rest = trace.read_text().splitlines()
    lines = {
        "line": [header, first, first[:50], *rest],
        "huge": [header, first.replace('"window": ', '"window": 99999')],
        "headless": [first, *rest],
        "steps": [header],
        "version": [header.replace('"version": 1', '"version": 2'), first],
        "bundle": [header.replace('"model.onnx.data": "', '"model.onnx.data": "0'), first],
        "option": [header.replace('"logprobs"', '"leap_threshold"'), first],
    }[damage]
    target.write_text("\n".join(lines) + "\n")
    return target


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        ("line", "line 3 is damaged"),
        ("huge", "line 2 has 1 branches and a size of 99999"),
        ("headless", "line 1 is damaged"),
        ("steps", "has no steps"),
        ("version", "a step log of version 2"),
        ("bundle", "a step log of weights 0"),
        ("option", "leap_threshold"),
    ],
)
def test_traces_that_cannot_be_used(bundle: Path, trace: Path, tmp_path: Path, damage: str, message: str) -> None:
    path = damaged(trace, tmp_path / "damaged.jsonl", damage)
    done = lopa_export("plan", bundle, "--step-log", trace, "--step-log", path)
    assert (done.returncode, done.stdout) == (2, "")
    assert message in done.stderr
    assert "Traceback" not in done.stderr
    assert not (bundle / "shape_buckets.json").exists()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--memory", "0.0000001"], "GiB: one branch of one request over a window of 256"),
        (["--build-seconds", 10], "must be given together"),
        (["--build-seconds", 10, "--build-seconds-per-bucket", 11], "at least 11 seconds"),
        (["--step-log", "/dev/zero"], "not a regular file"),
        (["--device", "warp:0", "-o", "nowhere/plan.json"], "device 'warp:0'"),
        (["-o", "/proc/shape_buckets.json"], "cannot write"),
    ],
)
def test_bad_usage_is_one_clear_message(bundle: Path, trace: Path, arguments: list[object], message: str) -> None:
    done = lopa_export("plan", bundle, "--step-log", trace, *arguments)
    assert (done.returncode, done.stdout) == (2, "")
    assert message in done.stderr
    assert "Traceback" not in done.stderr


def test_the_suggested_minimum_memory_is_enough(bundle: Path, trace: Path, tmp_path: Path) -> None:
    arguments = ("plan", bundle, "--step-log", trace, "--json", "-o", tmp_path / "plan.json", "--memory")
    lower = lopa_export(*arguments, 1e-6).stderr.split("at least ")[1].split()[0]
    done = lopa_export(*arguments, lower)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["bucket_bytes"] <= float(lower) * 2**30
