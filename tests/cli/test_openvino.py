"""Commands on openvino:CPU: same steps and answers as on cpu, cost tables, plans, comparison with the PyTorch loop."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.cli.command import PROMPT, lopa_export

from lopa.bench.forward import cost_measurement as costs

pytest.importorskip("openvino")

DEVICE = "openvino:CPU"


def steps_of(path: Path, number: Callable[[str], Any] = float) -> list[dict[str, Any]]:
    """Return the steps of a trace without their seconds; `number` parses fractions."""
    steps = [json.loads(line, parse_float=number) for line in path.read_text().splitlines()][1:]
    return [{name: value for name, value in step.items() if name != "seconds"} for step in steps]


@pytest.mark.parametrize(
    "options",
    [("--branches", 4), ("--branches", 3, "--attention", "block_causal")],
)
def test_a_trace_is_that_of_cpu(tiny_bundle: Path, tmp_path: Path, options: tuple[object, ...]) -> None:
    """Compare all fields of a step but its seconds. Confidences may differ by the order of summation."""
    paths = {device: tmp_path / f"{device.replace(':', '-')}.jsonl" for device in ("cpu", DEVICE)}
    for device, path in paths.items():
        done = lopa_export("generate", tiny_bundle, PROMPT, "--device", device, *options, "--step-log", path)
        assert done.returncode == 0, done.stderr
    found = steps_of(paths[DEVICE])
    assert len(found) > 3
    assert found == steps_of(paths["cpu"], lambda text: pytest.approx(float(text), abs=1e-4))


def test_costs_branches_and_a_plan_of_the_device_chosen_by_auto(
    tiny_bundle: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The table is stored under the chosen device, and found by every later request for that device."""
    monkeypatch.setattr(costs, "GRIDS", (costs.Grid((1, 4), (1, 2), (64,)),))
    monkeypatch.setattr(costs, "_MAX_ROUNDS", 3)
    monkeypatch.setattr(costs, "_HOST_PROMPTS", 1)
    monkeypatch.setattr(costs, "_HOST_SECONDS", 0.2)
    bundle = Path(shutil.copytree(tiny_bundle, tmp_path / "bundle"))
    done = lopa_export("bench", "costs", bundle, "--threads", 1, "--device", f"{DEVICE}:auto", "--output", tmp_path)
    assert done.returncode == 0, done.stderr
    run = json.loads((tmp_path / "costs.json").read_bytes())["run"]
    taken = run["device"]
    assert taken in (DEVICE, f"{DEVICE}:bf16")
    assert (bundle / f"costs.{taken.replace(':', '-')}.json").is_file()
    trace = tmp_path / "trace.jsonl"
    one = ("--device", taken, "--threads", 1)
    done = lopa_export("generate", bundle, PROMPT, *one, "--branches", "auto", "--step-log", trace)
    assert done.returncode == 0, done.stderr
    done = lopa_export("plan", bundle, "--device", taken, "--step-log", trace, "--buckets", 2)
    assert done.returncode == 0, done.stderr
    assert f"Shape buckets for {taken}, measured costs" in done.stdout
