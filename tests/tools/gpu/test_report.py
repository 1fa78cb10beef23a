"""The GPU report on the CPU with a miniature: files, figures, interruption, resumption and a wrong engine."""

import json
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from packaging.version import Version
from tests.tools.miniature import MINIATURE
from tools.gpu import stages
from tools.gpu.run import GpuRun, Settings
from tools.gpu.sides import Sides
from tools.gpu.stages import check_results, gpu_report

from lopa.bench.forward.work import ForwardShape
from lopa.bench.gpu.results import STAGES, GpuResults, Stage, results_from_file
from lopa.bench.speed.eager_model import eager_model_from_checkpoint
from lopa.bench.speed.eager_session import EagerSession
from lopa.runtime.bundle import Bundle
from lopa.runtime.errors import CheckFailedError

pytestmark = pytest.mark.slow

SHAPE = ForwardShape(2, 8, 64, wanted=8)
LATER_SHAPE = ForwardShape(4, 64, 64, wanted=64)
SIDES = ["lopa cpu", "torch eager", "torch.compile"]


def settings_in(folder: Path, **changes: object) -> Settings:
    settings = Settings(
        name="miniature",
        likeness=MINIATURE,
        out=folder / "out",
        work=folder / "work",
        command="python -m tools.gpu.report --out out",
        device="cpu",
        dtypes=("float32",),
        rounds=3,
        shapes=(SHAPE, LATER_SHAPE),
        profiled=(SHAPE,),
    )
    return replace(settings, **changes)  # type: ignore[arg-type]


def is_same_release(one: str, other: str) -> bool:
    """Return True if two versions are equal except for local parts, since a wheel's metadata may lack "+cu130"."""
    return Version(one).public == Version(other).public


@pytest.fixture(scope="module")
def cut_off(tmp_path_factory: pytest.TempPathFactory) -> tuple[Settings, GpuResults, list[str]]:
    """Run all stages with the time used up after the first shape."""
    settings, log = settings_in(tmp_path_factory.mktemp("gpu")), list[str]()
    with pytest.MonkeyPatch.context() as patch:
        spent = f"forward float32 {SHAPE.branches} x {SHAPE.window}"
        patch.setattr("tools.gpu.programs._OPTIONS", {"int4": ("--quantize", "int4")})
        patch.setattr(GpuRun, "seconds_left", property(lambda _: -1.0 if log and log[-1].startswith(spent) else 100.0))
        return settings, gpu_report(settings, log.append), log


def test_every_stage_records_its_figures(cut_off: tuple[Settings, GpuResults, list[str]]) -> None:
    _, results, log = cut_off
    check_results(results)
    assert [(run.stage, run.note) for run in results.stages[:-1]] == [
        ("programs", "3 programs"),
        ("checkpoint", "made"),
        ("export", "made"),
        ("check", "2 of 2 sides"),
        ("decode", "1 of 1 engines"),
        ("kernels", "1 of 1 forwards"),
    ]
    assert [each.name for each in results.programs] == ["export int4", "verify int4", "recorded decodes"]
    assert all(each.passed and each.seconds > 1 for each in results.programs)
    assert "38 passed" in results.programs[-1].last
    assert all(run.seconds > 0 for run in results.stages)
    assert [each.side for each in results.opened] == SIDES[:2]
    assert [each.side for each in results.checks] == SIDES[:2]
    assert all(each.agreement.rows > 500 and each.agreement.disagreements == 0 for each in results.checks)
    (decode,) = results.decodes
    assert decode.side == "lopa cpu"
    assert decode.steps.steps == 3 * 23
    assert 0 < decode.steps.host_share < 1
    assert [(each.side, each.shape) for each in results.forwards] == [(side, SHAPE) for side in SIDES]
    (failure,) = results.failures  # there is no GPU
    assert (failure.side, failure.stage, failure.what) == ("lopa cpu", "kernels", "2 x 8, 64")
    assert "saw nothing on the device CPU" in failure.reason
    for stage in STAGES:
        assert any(line.startswith(stage) for line in log)
    assert "check float32: 2 of 2 sides begins, 100 s left" in log


@pytest.mark.parametrize("stage", ["check", "decode", "kernels"])
def test_stages_stop_at_the_limit(
    stage: Stage, cut_off: tuple[Settings, GpuResults, list[str]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings, _, _ = cut_off
    run = GpuRun.start(replace(settings, out=tmp_path, work=tmp_path), lambda _: None)
    monkeypatch.setattr(stages, "reference_from_checkpoint", lambda *_: None)
    monkeypatch.setattr(GpuRun, "seconds_left", -1.0)
    stages._OPEN_STAGES[stage](run, "float32", Sides(Bundle.open(settings.bundle("float32")), {"lopa cpu": None}))  # type: ignore[dict-item]
    (found,) = run.results.stages
    assert (found.finished, found.note[:4]) == (False, "0 of")
    assert not run.results.failures


def test_the_files(cut_off: tuple[Settings, GpuResults, list[str]]) -> None:
    settings, results, _ = cut_off
    assert results_from_file(settings.work / "gpu.json") == results
    written = json.loads((settings.out / "gpu.json").read_bytes())
    assert written["machine"]["device"] == "cpu"
    assert is_same_release(written["machine"]["machine"]["versions"]["torch"], torch.__version__)
    assert written["forwards"][0]["shape"] == {"branches": 2, "window": 8, "prefix": 64, "wanted": 8}
    text = (settings.out / "gpu.md").read_text()
    times = {each.side: f"{each.median * 1e3:.2f} ({each.times_floor:.2f})" for each in results.forwards}
    cells = [" ".join(cell.split()) for line in text.splitlines() if "2 x 8, 64" in line for cell in line.split("|")]
    assert [cell for cell in cells if "(" in cell] == [times[side] for side in SIDES]
    assert "host's share of a step" in text
    assert settings.command in text


def test_kernels_are_profiled(cut_off: tuple[Settings, GpuResults, list[str]], tmp_path: Path) -> None:
    """Profile torch on the CPU, because the profiler does not see ONNX Runtime there."""
    settings, _, _ = cut_off
    run = GpuRun.start(replace(settings, out=tmp_path, work=tmp_path), lambda _: None)
    eager = EagerSession(eager_model_from_checkpoint(settings.checkpoint, None), together=True)
    stages._kernels(run, "float32", Sides(Bundle.open(settings.bundle("float32")), {"lopa cpu": eager}))
    (found,) = run.results.kernels
    assert (found.dtype, found.side, found.shape) == ("float32", "lopa cpu", SHAPE)
    assert found.kernels.launches > 100
    assert len(found.kernels.longest) == 12
    products = {name: launches for name, launches, _ in found.kernels.longest}["aten::linear"]
    assert products == 2 * 7 + 1
    assert f"{found.kernels.busy * 1e3:.2f}" in (tmp_path / "gpu.md").read_text()


def test_an_engine_with_other_weights_disagrees(
    cut_off: tuple[Settings, GpuResults, list[str]], tmp_path: Path
) -> None:
    settings, _, _ = cut_off
    shutil.copytree(settings.work, tmp_path / "work")
    again = settings_in(tmp_path, stages=("check",))
    bundle = Bundle.open(again.bundle("float32"))
    changed = bundle.manifest.tensors["layers.1.mlp.down.weight"]
    data = bytearray(bundle.weights.read_bytes())
    data[changed.offset : changed.offset + changed.length] = data[changed.offset : changed.offset + changed.length][
        ::-1
    ]
    bundle.weights.write_bytes(data)
    results = gpu_report(again, lambda _: None)
    ours, eager = results.checks
    assert ours.agreement.disagreements > 0
    assert eager.agreement.disagreements == 0
    with pytest.raises(CheckFailedError, match="lopa cpu, float32"):
        check_results(results)
