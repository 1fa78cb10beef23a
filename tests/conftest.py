"""Shared fixtures: bundles of the embedded checkpoint, exported once per run for all workers, and `pytest --quick`."""

import gc
import os
import re
import shutil
import signal
import sys
from collections.abc import Callable, Generator, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any, Literal

import pytest
from tests.optional_libraries import forget_module, missing_library
from tests.python_path import python_path
from tests.shared_folder import locked, shared_folder

from lopa.tiny import ADAPTER, CHECKPOINT

_TRACE = "lopa.export.graph.torch_graph"
_QUICK = "runtime"
_NOT_QUICK = (
    *("accelerator", "ascend", "cpu_kernels", "cuda", "mpi", "multi_device", "openvino", "qnn", "tensorrt", "webgpu"),
    *("bundle", "chat", "files", "grammar", "hub", "scoring", "sessions", "signature", "text"),
)
"""Folders of tests/runtime about devices, and about packages around the decoding core: `--quick` leaves them out."""
_SLOW_FIXTURE = "family_bundle"
"""Fixture that exports checkpoints of other families. `--quick` uses the embedded checkpoint only."""


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--quick",
        action="store_true",
        help="Run the tests of the decoding core that belong to no device and no other family. Skip a test when it"
        " starts a process.",
    )


def pytest_configure(config: pytest.Config) -> None:
    # Processes that a shell starts in the background ignore Ctrl-C. Processes that tests interrupt would inherit that.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    if config.option.quick:
        _skip_tests_that_start_processes()


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Exclude tests outside the decoding core from `--quick`."""
    if not config.option.quick:
        return None
    package, *folders = collection_path.relative_to(Path(__file__).parent).parts or (_QUICK,)
    return True if package != _QUICK or (folders and folders[0] in _NOT_QUICK) else None


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Exempt imported and collected objects from garbage collection, since they stay until the end of the run."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report(
    collector: pytest.Collector,
) -> Generator[None, pytest.CollectReport, pytest.CollectReport]:
    """Skip a module whose optional library is missing: `pytest -m cuda` needs only the libraries of its tests."""
    report = yield
    call = vars(report).get("call")
    if report.failed and isinstance(collector, pytest.Module) and call is not None and call.excinfo is not None:
        library = missing_library(call.excinfo.value)
        if library is not None:
            forget_module(collector.path)
            report.outcome = "skipped"
            report.longrepr = (str(collector.path), 1, f"Skipped: needs {library}, which is not installed")
    return report


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if config.option.quick:
        left_out = [
            item
            for item in items
            if _SLOW_FIXTURE in getattr(item, "fixturenames", ()) or item.get_closest_marker("slow") is not None
        ]
        config.hook.pytest_deselected(items=left_out)
        items[:] = [item for item in items if item not in left_out]
    # Coverage counts only code that a package's own tests reach. Measuring other tests takes longer and is less useful.
    if not config.pluginmanager.hasplugin("_cov"):  # only with --cov
        return
    own = tuple(config.rootpath / "tests" / package for package in ("runtime", "export"))
    for item in items:
        if not any(item.path.is_relative_to(folder) for folder in own):
            item.add_marker("no_cover")


CANVAS = Path(__file__).parent / "reference" / "diffusion_gemma" / "canvas16"


@pytest.fixture(scope="session", autouse=True)
def _keep_traces_of_session(tmp_path_factory: pytest.TempPathFactory) -> None:
    """Let this process's exports use kept traces (tests/export/kept_traces.py), including session fixtures' exports."""
    if _TRACE in sys.modules:
        _keep_traces(tmp_path_factory)


@pytest.fixture(autouse=True)
def _keep_traces_of_test(tmp_path_factory: pytest.TempPathFactory) -> None:
    """Use kept traces if a test imported the exporter, which needs torch. Tests of the runtime run without torch."""
    if _TRACE in sys.modules:
        _keep_traces(tmp_path_factory)


@pytest.fixture(autouse=True, scope="session")
def _keep_graphs_of_session(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Keep graphs of shared bundles open (tests/kept_graphs.py)."""
    from tests.kept_graphs import close_graphs, keep_graphs

    keep_graphs(shared_folder(tmp_path_factory))
    yield
    close_graphs()


@pytest.fixture(autouse=True)
def _webgpu_adapter(request: pytest.FixtureRequest) -> None:
    """Skip a test with the marker webgpu where no adapter runs a graph."""
    if request.node.get_closest_marker("webgpu") is None:
        return
    from lopa.runtime.errors import MissingBackendError
    from lopa.runtime.webgpu.webgpu_library import can_run, webgpu_adapters

    try:
        adapters = webgpu_adapters()
    except MissingBackendError as error:
        pytest.skip(f"WebGPU: {error}")
    if not any(map(can_run, adapters)):
        pytest.skip("no WebGPU adapter: make test-webgpu unpacks a software one")


@pytest.fixture(scope="session")
def kept_traces_of_processes(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Environment variables that make exporting processes use kept traces, for tests that do not test the trace."""
    root = Path(__file__).resolve().parents[1]
    paths = (root / "tests" / "export" / "in_processes", root)
    return {"PYTHONPATH": python_path(*paths), "KEPT_TRACES": str(_traces_folder(tmp_path_factory))}


@pytest.fixture(scope="session")
def tiny_bundle(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Bundle in float32 with the adapter merged. It is shared: a test that changes it copies it first."""
    return _export_once(tmp_path_factory, "tiny", with_logits=False)


@pytest.fixture(scope="session")
def tiny_bundle_logits(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """tiny_bundle with the logits among the outputs."""
    return _export_once(tmp_path_factory, "tiny-logits", with_logits=True)


@pytest.fixture(scope="session")
def canvas_bundle(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Bundle of a trained DiffusionGemma in float32."""
    return _export_once(tmp_path_factory, "canvas", with_logits=True, checkpoint=CANVAS, lora=None)


@pytest.fixture(scope="session")
def canvas_portable(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """canvas_bundle in the portable dialect only."""
    portable: tuple[Literal["portable"]] = ("portable",)
    return _export_once(
        tmp_path_factory, "canvas-portable", with_logits=True, checkpoint=CANVAS, lora=None, dialects=portable
    )


@pytest.fixture(scope="session")
def canvas_bundle_int4(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """canvas_bundle with int4 matrices."""
    return _export_once(tmp_path_factory, "canvas4", with_logits=True, checkpoint=CANVAS, lora=None, quantize="int4")


@pytest.fixture(scope="session")
def expand_bundle(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Embedded model with DreamOn's expand token and without an adapter."""
    from tests.dreamon_checkpoint import checkpoint_with_expand

    checkpoint = checkpoint_with_expand(tmp_path_factory.mktemp("expand") / "checkpoint")
    return _export_once(tmp_path_factory, "tiny-expand", with_logits=False, checkpoint=checkpoint, lora=None)


@pytest.fixture(scope="session")
def tiny_half(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """tiny_bundle_logits in float16."""
    pytest.importorskip("torch")
    return _export_once(tmp_path_factory, "tiny-half", with_logits=True, dtype="float16")


@pytest.fixture(scope="session")
def tiny_staged(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """tiny_bundle with the graphs of a two-stage pipeline: 3 layers and 2."""
    return _export_once(tmp_path_factory, "tiny-staged", with_logits=False, stages=2)


@pytest.fixture(scope="session")
def tiny_portable(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """tiny_bundle_logits in the portable dialect only."""
    return _export_once(tmp_path_factory, "tiny-portable", with_logits=True, dialects=("portable",))


@pytest.fixture(scope="session")
def tiny_rotary(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """tiny_staged with graphs that take cosines and sines."""
    return _export_once(tmp_path_factory, "tiny-rotary", with_logits=False, stages=2, rotary_inputs=True)


@pytest.fixture(scope="session")
def tiny_portable_positions(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """tiny_portable with a graph that takes positions, as in bundles of older versions."""
    dialects: tuple[Literal["portable"]] = ("portable",)
    return _export_once(
        tmp_path_factory, "tiny-portable-positions", with_logits=True, dialects=dialects, rotary_inputs=False
    )


@pytest.fixture(scope="session")
def tiny_plugins(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """tiny_bundle with the functions of ONNX domain `lopa` in its graph."""
    return _export_once(tmp_path_factory, "tiny-plugins", with_logits=False, plugins=True)


@pytest.fixture(scope="session", params=["int8", "int4"])
def tiny_quantized(tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest) -> Path:
    """tiny_bundle with quantized matrices and head. A test runs once with int8 and once with int4."""
    return _export_once(tmp_path_factory, f"tiny-{request.param}", with_logits=False, quantize=request.param)


@pytest.fixture(scope="session")
def export_tiny(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Path]:
    """Return a function that exports tiny_bundle with other options of _export_once, once per run for each."""

    def export(**options: Any) -> Path:
        name = "-".join(["tiny", *(f"{key}-{value}" for key, value in sorted(options.items()))])
        name = re.sub(r"[^A-Za-z0-9_-]", "", name)
        return _export_once(tmp_path_factory, name, **options)

    return export


@pytest.fixture(scope="session")
def tiny_bfloat16(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """tiny_bundle in bfloat16."""
    return _export_once(tmp_path_factory, "tiny-bfloat16", with_logits=False, dtype="bfloat16")


@pytest.fixture(scope="session")
def family_bundle(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Path]:
    """Return a function that exports a family: llada, sdar, fast_dllm_v2, llada2, sdar_moe or llada_moe.

    It uses the recordings' checkpoints. By default a bundle has both dialects, and SDAR's also two stages. With
    options of _export_once it has one dialect and the requested features. Skip without torch.
    """

    def made(family: str, **options: Any) -> Path:
        pytest.importorskip("torch")
        usual = {"dialects": ("standard", "portable"), "stages": 2 if family == "sdar" else 1}
        return _export_once(
            tmp_path_factory,
            "-".join([family, *(f"{key}-{value}" for key, value in options.items())]),
            checkpoint=_family_checkpoint(family),
            lora=None,
            **{"with_logits": False, **(options or usual)},
        )

    return made


def _family_checkpoint(family: str) -> Path:
    reference = Path(__file__).parent / "reference"
    return next(path for path in (reference / "families" / family, reference / "moe" / family) if path.is_dir())


@pytest.fixture(scope="session")
def real_rtx(pytestconfig: pytest.Config) -> ModuleType:
    """Return the real TensorRT for RTX, which parses and builds without a GPU. Skip when pip cannot fetch it."""
    from tests.runtime.tensorrt.bindings import rtx_module

    return rtx_module(pytestconfig)


@pytest.fixture
def few_cases(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a verification compare 4 of its 18 cases: one row, a prefix, several branches, several requests."""
    from lopa.export.verify.cases import SHAPES

    monkeypatch.setattr("lopa.export.verify.cases.SHAPES", tuple(SHAPES[number] for number in (1, 5, 10, 15)))


@pytest.fixture
def planned_bundle(tiny_portable: Path, tmp_path: Path) -> Path:
    """Portable bundle that belongs to the test, with a plan of three buckets."""
    from tests.buckets import params_of
    from tests.runtime.bundle.test_buckets import BUCKETS

    from lopa.runtime.bundle import Bundle
    from lopa.runtime.bundle.buckets import BUCKETS_NAME
    from lopa.runtime.bundle.record import json_from_record

    path = Path(shutil.copytree(tiny_portable, tmp_path / "bundle"))
    (path / BUCKETS_NAME).write_bytes(json_from_record(params_of(Bundle.open(path), buckets=BUCKETS)))
    return path


@pytest.fixture
def atc_calls(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """File to which the stand-in atc, now on PATH, appends its calls."""
    from tests.runtime.ascend.stand_in_toolkit import stand_in_toolkit

    calls = tmp_path / "calls.jsonl"
    monkeypatch.setenv("PATH", str(stand_in_toolkit(tmp_path / "toolkit")), prepend=os.pathsep)
    monkeypatch.setenv("STAND_IN_ATC_CALLS", str(calls))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    for name in ("ASCEND_PROCESS_LOG_PATH", "ASCEND_TOOLKIT_HOME", "ASCEND_HOME_PATH"):
        monkeypatch.delenv(name, raising=False)
    return calls


def _export_once(
    tmp_path_factory: pytest.TempPathFactory,
    name: str,
    *,
    with_logits: bool,
    checkpoint: Path = CHECKPOINT,
    lora: Path | None = ADAPTER,
    quantize: Literal["int8", "int4", "fp8"] | None = None,
    exclude: tuple[str, ...] = (),
    stages: int = 1,
    dialects: tuple[Literal["standard", "portable"], ...] = ("standard",),
    dtype: Literal["float32", "float16", "bfloat16"] = "float32",
    plugins: bool = False,
    rotary_inputs: bool | None = None,
) -> Path:
    bundle = shared_folder(tmp_path_factory) / name
    with locked(bundle):
        if not bundle.exists():
            # This import is here because the runtime's tests also run without torch.
            from tests.export.kept_traces import unmeasured

            from lopa.export.bundle_from_checkpoint import bundle_from_checkpoint
            from lopa.export.weights.quantization import QuantizationChoice

            _keep_traces(tmp_path_factory)
            choice = None if quantize is None else QuantizationChoice(quantize, exclude=exclude)
            with unmeasured():
                bundle_from_checkpoint(
                    checkpoint,
                    bundle,
                    lora=lora,
                    quantization=choice,
                    dialects=dialects,
                    dtype=dtype,
                    with_logits=with_logits,
                    stages=stages,
                    plugins=plugins,
                    rotary_inputs=rotary_inputs,
                )
    return bundle


def _skip_tests_that_start_processes() -> None:
    # Local names for the hook, which is called until the interpreter ends, when modules are already gone.
    started = frozenset(("subprocess.Popen", "os.posix_spawn", "os.fork"))
    environment = os.environ

    def before_event(event: str, arguments: tuple[object, ...]) -> None:
        if event not in started or "PYTEST_CURRENT_TEST" not in environment:
            return
        # ctypes.util.find_library starts it, in modules that are imported while a test runs.
        if not arguments or arguments[0] != "/sbin/ldconfig":
            pytest.skip("starts a process, which --quick leaves out")

    sys.addaudithook(before_event)  # https://docs.python.org/3/library/audit_events.html


def _keep_traces(tmp_path_factory: pytest.TempPathFactory) -> None:
    from tests.export.kept_traces import kept_traces

    from lopa.export.graph import torch_graph

    torch_graph.traced_graph = kept_traces(_traces_folder(tmp_path_factory))


def _traces_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = shared_folder(tmp_path_factory) / "traces"
    folder.mkdir(exist_ok=True)
    return folder
