"""Sides on a GPU: the same bundle with this project's operators and without them. The GPU is a stand-in."""

from dataclasses import replace
from pathlib import Path

import pytest
from tests.tools.gpu.test_report import settings_in
from tools.gpu import sides
from tools.gpu.run import GpuRun
from tools.gpu.stages import check_results

from lopa.runtime.bundle import Bundle
from lopa.runtime.cuda_kernels.cuda_library import CudaLibrary
from lopa.runtime.errors import MissingBackendError
from lopa.runtime.sessions.session import Session, open_session


@pytest.mark.parametrize("has_operators", [True, False])
def test_the_plain_graph_is_a_side(
    has_operators: bool, tiny_bundle: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened: dict[str, list[str]] = {}

    def open_on_cpu(bundle: Bundle, device: str) -> Session:
        assert device == "cuda:0"
        opened[f"side {len(opened)}"] = [twin.provider for twin in bundle.manifest.twins]
        return open_session(bundle.with_twins(), "cpu", threads=1)

    library = CudaLibrary(Path("library.so"), None) if has_operators else "this driver is too old"  # type: ignore[arg-type]
    monkeypatch.setattr(sides, "open_session", open_on_cpu)
    monkeypatch.setattr(sides, "loaded_library", lambda number: library if number == 0 else "another device")
    monkeypatch.setattr(sides, "memory_in_use", lambda _: 0)
    settings = settings_in(tmp_path)
    for folder in (settings.work, settings.out):
        folder.mkdir()
    run = GpuRun.start(settings, lambda _: None)
    run.settings = replace(settings, device="cuda:0")
    settings.bundle("float32").symlink_to(tiny_bundle)
    with sides.open_sides(run, "float32") as found:
        names = list(found.engines)
    assert "cuda" in opened["side 0"]
    assert opened["side 1"] == []
    both = ["lopa cuda:0", "lopa cuda:0, plain graph"]
    assert names == (both if has_operators else both[1:])
    ours = [each for each in run.results.failures if each.side.startswith("lopa")]
    assert [each.side for each in ours] == ([] if has_operators else both[:1])
    if ours:
        assert "operators are not used: this driver is too old" in ours[0].reason
        with pytest.raises(MissingBackendError, match="lopa cuda:0 could not be opened"):
            check_results(run.results)
