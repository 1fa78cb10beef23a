"""Commands on openvino:CPU: same steps and answers as on cpu, cost tables, plans, comparison with the PyTorch loop."""

import shutil
from pathlib import Path

import pytest
from tests.cli.command import PROMPT, lopa_export

from lopa.bench.forward import cost_measurement as costs

pytest.importorskip("openvino")

DEVICE = "openvino:CPU"


def test_costs_branches_and_a_plan_of_the_device(
    tiny_bundle: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The table is stored under the device, and found by every later request for that device."""
    monkeypatch.setattr(costs, "GRIDS", (costs.Grid((1, 4), (1, 2), (64,)),))
    monkeypatch.setattr(costs, "_MAX_ROUNDS", 3)
    monkeypatch.setattr(costs, "_HOST_PROMPTS", 1)
    monkeypatch.setattr(costs, "_HOST_SECONDS", 0.2)
    bundle = Path(shutil.copytree(tiny_bundle, tmp_path / "bundle"))
    done = lopa_export("bench", "costs", bundle, "--threads", 1, "--device", DEVICE)
    assert done.returncode == 0, done.stderr
    assert (bundle / f"costs.{DEVICE.replace(':', '-')}.json").is_file()
    trace = tmp_path / "trace.jsonl"
    one = ("--device", DEVICE, "--threads", 1)
    done = lopa_export("generate", bundle, PROMPT, *one, "--branches", "auto", "--step-log", trace)
    assert done.returncode == 0, done.stderr
    done = lopa_export("plan", bundle, "--device", DEVICE, "--step-log", trace, "--buckets", 2)
    assert done.returncode == 0, done.stderr
    assert f"Shape buckets for {DEVICE}, measured costs" in done.stdout
