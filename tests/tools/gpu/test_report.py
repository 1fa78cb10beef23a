"""The GPU report on the CPU with a miniature: files, figures, interruption, resumption and a wrong engine."""

import json
import os
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from packaging.version import Version
from tests.python_path import python_path
from tests.tools.miniature import MINIATURE
from tools.checkpoint.likeness import LIKENESSES
from tools.gpu.report import main
from tools.gpu.run import GpuRun, Settings
from tools.gpu.sides import run_once
from tools.gpu.stages import check_results, gpu_report

from lopa.bench.forward.comparison import SideResult, compare_forwards
from lopa.bench.forward.work import ForwardShape, MachineRates
from lopa.bench.gpu.results import STAGES, GpuResults, results_from_file
from lopa.bench.speed.eager_session import EagerSession
from lopa.runtime.bundle import Bundle
from lopa.runtime.bundle.manifest import Manifest
from lopa.runtime.errors import BadInputError, CheckFailedError, MissingBackendError
from lopa.runtime.sessions.session import Session

pytestmark = pytest.mark.slow

ROOT = Path(__file__).resolve().parents[3]
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
    )
    return replace(settings, **changes)  # type: ignore[arg-type]


def is_same_release(one: str, other: str) -> bool:
    """Return True if two versions are equal except for local parts, since a wheel's metadata may lack "+cu130"."""
    return Version(one).public == Version(other).public


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [("2.11.0", "2.11.0+cu130", True), ("2.13.0+cpu", "2.13.0+cpu", True), ("2.11.0", "2.11.1+cu130", False)],
)
def test_torch_versions_are_compared_without_local_parts(one: str, other: str, same: bool) -> None:
    assert is_same_release(one, other) == is_same_release(other, one) == same


@pytest.fixture(scope="module")
def cut_off(tmp_path_factory: pytest.TempPathFactory) -> tuple[Settings, GpuResults, list[str]]:
    """Run all stages with the time used up after the first shape."""
    settings, log = settings_in(tmp_path_factory.mktemp("gpu")), list[str]()
    with pytest.MonkeyPatch.context() as patch:
        spent = f"forward float32 {SHAPE.branches} x {SHAPE.window}"
        patch.setattr(GpuRun, "seconds_left", property(lambda _: -1.0 if log and log[-1].startswith(spent) else 100.0))
        return settings, gpu_report(settings, log.append), log


def test_every_stage_records_its_figures(cut_off: tuple[Settings, GpuResults, list[str]]) -> None:
    _, results, log = cut_off
    check_results(results)
    assert [(run.stage, run.note) for run in results.stages[:5]] == [
        ("checkpoint", "made"),
        ("export", "made"),
        ("engine", "TensorRT is not installed"),
        ("check", "tokens compared"),
        ("decode", "steps timed"),
    ]
    assert all(run.seconds > 0 for run in results.stages)
    assert [each.side for each in results.opened] == SIDES[:2]
    assert [each.side for each in results.checks] == SIDES[:2]
    assert all(each.agreement.rows > 500 and each.agreement.disagreements == 0 for each in results.checks)
    (decode,) = results.decodes
    assert decode.side == "lopa cpu"
    assert decode.steps.steps == 3 * 23
    assert 0 < decode.steps.host_share < 1
    assert [(each.side, each.shape) for each in results.forwards] == [(side, SHAPE) for side in SIDES]
    assert not results.failures
    for stage in STAGES:
        assert any(line.startswith(stage) for line in log)


def test_the_roofline_computed_by_hand(cut_off: tuple[Settings, GpuResults, list[str]]) -> None:
    """Sizes: 64 hidden, 160 MLP, 4 heads of 16 with 2 key-value heads, 2 layers, 640 tokens; 2 x 8 rows after 64."""
    _, results, _ = cut_off
    matrices = 2 * (64 * 64 + 2 * 64 * 32 + 64 * 64 + 3 * 64 * 160)
    head, rows = 64 * 640, 16
    operations = 2 * rows * (matrices + head) + 4 * rows * (64 + 8) * 64 * 2
    biases, norms, cached_row = 2 * (64 + 32 + 32), 5 * 64, 2 * 2 * 32
    moved = 4 * (matrices + head + biases + norms + rows * 64 + cached_row * (64 + rows))
    (found,) = results.rates
    floor = max(operations / found.rates.float32, moved / found.rates.bandwidth)
    for each in results.forwards:
        assert each.floor == pytest.approx(floor)
        assert each.times_floor == pytest.approx(each.median / floor)
        assert 0 < each.min <= each.median


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


def test_missing_shapes_are_reported(cut_off: tuple[Settings, GpuResults, list[str]]) -> None:
    settings, results, _ = cut_off
    last = results.stages[-1]
    assert (last.stage, last.finished, last.note) == ("forward", False, "1 of 2 shapes within 540 seconds")
    text = (settings.out / "gpu.md").read_text()
    missing = text.partition("## Missing")[2]
    assert "stage forward float32: 1 of 2 shapes within 540 seconds" in missing
    (line,) = [line for line in text.splitlines() if "4 x 64, 64" in line]
    assert [cell.strip() for cell in line.split("|")[2:6]] == ["-"] * 4


def test_a_later_run_reuses_folders_and_keeps_other_stages(
    cut_off: tuple[Settings, GpuResults, list[str]], tmp_path: Path
) -> None:
    settings, before, _ = cut_off
    shutil.copytree(settings.work, tmp_path / "work")
    again = settings_in(tmp_path, stages=("checkpoint", "export", "check"), command="again")
    made = {path: path.stat().st_mtime_ns for path in sorted(again.work.rglob("*")) if path.name != "gpu.json"}
    results = gpu_report(again, lambda _: None)
    assert {path: path.stat().st_mtime_ns for path in made if path.is_file()} == {
        path: time for path, time in made.items() if path.is_file()
    }
    notes = {run.stage: run.note for run in results.stages}
    assert (notes["checkpoint"], notes["export"]) == ("reused", "reused")
    assert results.forwards == before.forwards
    assert results.decodes == before.decodes
    assert len(results.checks) == 2, "new ones in place of the old ones"
    assert results.commands == (settings.command, "again")


def test_other_shapes_start_a_new_report(cut_off: tuple[Settings, GpuResults, list[str]], tmp_path: Path) -> None:
    settings, _, _ = cut_off
    shutil.copytree(settings.work, tmp_path / "work")
    results = gpu_report(settings_in(tmp_path, stages=("export",), shapes=(SHAPE,)), lambda _: None)
    assert [run.stage for run in results.stages] == ["export"]
    assert not results.forwards


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


def test_the_first_stage_alone_gives_a_report(tmp_path: Path) -> None:
    settings = settings_in(tmp_path, stages=("checkpoint",))
    results = gpu_report(settings, lambda _: None)
    check_results(results)
    assert results_from_file(settings.out / "gpu.json") == results
    text = (settings.out / "gpu.md").read_text()
    for stage in STAGES[1:]:
        assert f"- stage {stage}: not run yet" in text


def test_nothing_is_started_after_the_time_limit(tmp_path: Path) -> None:
    log: list[str] = []
    results = gpu_report(settings_in(tmp_path, limit_seconds=1e-9), log.append)
    assert results.stages == ()
    assert sorted(path.name for path in (tmp_path / "work").iterdir()) == ["gpu.json"]
    assert log == [f"{stage}: not started, the limit of 1e-09 seconds is reached" for stage in STAGES]


def test_an_engine_that_fails_to_open_is_reported(tmp_path: Path) -> None:
    """ONNX Runtime has no bfloat16 on the CPU."""
    stages = ("checkpoint", "export", "check")
    results = gpu_report(settings_in(tmp_path, dtypes=("bfloat16",), stages=stages), lambda _: None)
    (failure,) = results.failures
    assert (failure.side, failure.stage) == ("lopa cpu", "open")
    assert "no bfloat16 operators" in failure.reason
    (eager,) = results.checks
    assert eager.side == "torch eager"
    assert 0 < eager.agreement.worst < 1, "rounding is seen"
    assert failure.reason in (tmp_path / "out" / "gpu.md").read_text()
    with pytest.raises(MissingBackendError, match="no bfloat16 operators"):
        check_results(results)


def test_foreign_folders_are_rejected(tmp_path: Path) -> None:
    with pytest.raises(BadInputError, match="no bundle of miniature"):
        gpu_report(settings_in(tmp_path, stages=("check",)), lambda _: None)
    gpu_report(settings_in(tmp_path, stages=("checkpoint",)), lambda _: None)
    other = replace(MINIATURE, mask=638)
    with pytest.raises(BadInputError, match="is not a likeness of miniature"):
        gpu_report(settings_in(tmp_path, stages=("checkpoint",), likeness=other), lambda _: None)
    (tmp_path / "work" / "gpu.json").write_text("{}")
    with pytest.raises(BadInputError, match="not a GPU report"):
        gpu_report(settings_in(tmp_path, stages=("checkpoint",)), lambda _: None)


def test_a_side_that_fails_at_a_shape_is_omitted(
    cut_off: tuple[Settings, GpuResults, list[str]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings, _, _ = cut_off
    shutil.copytree(settings.work, tmp_path / "work")

    def without_compiler(session: Session, manifest: Manifest, shape: ForwardShape) -> None:
        if isinstance(session, EagerSession) and session.model.layers[0]._compiled_call_impl is not None:
            raise RuntimeError("no compiler\nhere")
        run_once(session, manifest, shape)

    def until_the_second_shape(
        sides: dict[str, Session], manifest: Manifest, shapes: list[ForwardShape], rounds: int
    ) -> tuple[SideResult, ...]:
        if shapes == [LATER_SHAPE]:
            raise RuntimeError("lost")
        return compare_forwards(sides, manifest, shapes, rounds)

    monkeypatch.setattr("tools.gpu.stages.run_once", without_compiler)
    monkeypatch.setattr("tools.gpu.stages.compare_forwards", until_the_second_shape)
    monkeypatch.setattr("tools.gpu.stages.measure_torch_rates", lambda *_: MachineRates(1e9, 1e9, 1e9))
    results = gpu_report(settings_in(tmp_path, stages=("forward",)), lambda _: None)
    assert [(each.side, each.shape) for each in results.forwards] == [(side, SHAPE) for side in SIDES[:2]]
    assert [(each.side, each.what, each.reason) for each in results.failures] == [
        ("torch.compile", "2 x 8, 64", "RuntimeError: no compiler here"),
        ("torch.compile", "4 x 64, 64", "RuntimeError: no compiler here"),
        ("all sides", "4 x 64, 64", "RuntimeError: lost"),
    ]
    assert results.stages[-1].note == "2 of 2 shapes"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--device", "tensorrt:0"], "'tensorrt:0'"),
        (["--device", "cpu", "--stage", "checkpoint,eat"], "'eat'"),
        (["--device", "cpu", "--limit-seconds", "0"], "--limit-seconds"),
        (["--device", "cpu", "--limit-seconds", "nan"], "--limit-seconds"),
    ],
)
def test_invalid_arguments_are_rejected(
    arguments: list[str], message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(BadInputError, match=message):
        main(["--out", "out", "--work", "work", *arguments], standalone_mode=False)
    assert list(tmp_path.iterdir()) == []


def test_the_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setitem(LIKENESSES, "dream-0.5b", MINIATURE)
    monkeypatch.chdir(tmp_path)
    arguments = ["--out", "out", "--work", "work", "--device", "cpu", "--dtype", "fp32", "--like", "dream-0.5b"]
    main([*arguments, "--stage", "checkpoint"], standalone_mode=False)
    captured = capsys.readouterr()
    assert captured.out == (tmp_path / "out" / "gpu.md").read_text() + "\n"
    assert captured.err.startswith("checkpoint: made; ")
    assert sorted(path.name for path in (tmp_path / "work").iterdir()) == ["checkpoint-dream-0.5b", "gpu.json"]


@pytest.mark.skipif(torch.cuda.is_available(), reason="needs a machine without a GPU")
def test_a_missing_gpu_is_reported(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "tools.gpu.report", "--out", "out"],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": python_path()},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 3, done.stderr
    assert "an existing CUDA device" in done.stderr
    assert "Traceback" not in done.stderr
    assert list(tmp_path.iterdir()) == []
