"""Sessions on a WebGPU device, which is usually lavapipe: Mesa's Vulkan driver for processors."""

import json
import math
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import ClassVar

import numpy as np
import onnxruntime as ort
import pytest
from tests.canvas_checkpoints import FOLDER
from tests.runtime.canvas_decodes import CanvasDecodes
from tests.runtime.check_cases import assert_cases_agree, assert_growth_agrees, fits
from tests.runtime.device_contract import DeviceContract, Devices
from tests.runtime.random_windows import assert_same_statistics, random_batch
from tests.runtime.sequential import sequential

from lopa import BadInputError, Decoder
from lopa.export.verify.differences import FLOAT16_SUMS
from lopa.export.verify.report import report_from_bundle
from lopa.export.verify.session_check import NumpyReference, report_from_session
from lopa.runtime.accelerator.device_session import DeviceSession
from lopa.runtime.bundle import Bundle
from lopa.runtime.bundle.webgpu_twin import webgpu_graph
from lopa.runtime.contract import Statistics
from lopa.runtime.sessions.host_session import HostSession
from lopa.runtime.sessions.session import Session, open_session
from lopa.runtime.webgpu import webgpu_forward
from lopa.runtime.webgpu.webgpu_library import is_software, softmax_is_right, webgpu_device
from lopa.runtime.webgpu.webgpu_memory import WebGpuMemory
from lopa.runtime.webgpu.webgpu_session import session_with_device_caches

DEVICE = "webgpu:0"

pytestmark = pytest.mark.webgpu


@contextmanager
def _opened(bundle: Bundle, device: str = DEVICE) -> Iterator[Session]:
    session = open_session(bundle, device)
    try:
        yield session
    finally:
        session.close()


@pytest.fixture
def portable(tiny_portable: Path) -> Bundle:
    return Bundle.open(tiny_portable)


class TestContract(DeviceContract):
    one_device = True
    largest: ClassVar = {"prefix": 80, "window": 64}
    absent = "WebGPU offers"
    test_failing_device_is_dropped = None  # type: ignore[assignment]  # test_webgpu_errors.py loses a device

    @pytest.fixture
    def devices(self, portable: Bundle) -> Devices:
        return Devices(portable, "webgpu:{}")


@pytest.fixture  # after the one that skips without an adapter
def decoder(canvas_bundle: Path) -> Iterator[Decoder]:
    with Decoder.open(canvas_bundle, [DEVICE]) as opened:
        yield opened


class TestCanvases(CanvasDecodes):
    traces, seeds = 2, 1


@pytest.mark.parametrize("name", ["canvas_bundle", "canvas_bundle_int4"])
def test_canvases_agree_with_transformers(name: str, request: pytest.FixtureRequest) -> None:
    bundle = Bundle.open(request.getfixturevalue(name))
    report = report_from_bundle(bundle, checkpoint=FOLDER / "canvas16", device=DEVICE)
    assert report.ok, [each for each in report.errors if not each.ok]


def test_vocabularies_of_canvases_stay_on_the_device(canvas_bundle: Path, tmp_path: Path) -> None:
    """The processor sees the ids of a row's experts, and what a session reads."""
    bundle, options = Bundle.open(canvas_bundle), ort.SessionOptions()
    options.enable_profiling, options.profile_file_prefix = True, str(tmp_path / "profile")
    options.add_session_config_entry("ep.webgpuexecutionprovider.enableInt64", "1")
    options.add_provider_for_devices([webgpu_device(DEVICE)], {})
    session = ort.InferenceSession(str(webgpu_graph(bundle)), options)
    rows, sizes = 16, bundle.manifest.dimensions
    values = {"requests": 1, "branches": 1, "window": rows, "prefix": 64, "rows": rows}
    types = {"tensor(int64)": np.int64, "tensor(bool)": np.bool_, "tensor(float)": np.float32}
    session.run(
        ["topk_ids", "drawn_ids", "next_soft_embeddings"],
        {
            each.name: np.ones([values.get(axis, axis) for axis in each.shape], types[each.type])
            for each in session.get_inputs()
        },
    )
    events = [event["args"] for event in json.loads(Path(session.end_profiling()).read_bytes()) if "args" in event]
    copied = [event for event in events if event.get("op_name") == "MemcpyToHost"]
    shapes = [shape for event in copied for each in event["output_type_shape"] for shape in each.values()]
    assert {"Attention", "DequantizeLinear"}.isdisjoint(event.get("op_name") for event in events)
    assert max(map(math.prod, shapes)) == rows * sizes.hidden_size
    assert not any(sizes.vocab_size in shape for shape in shapes)


def test_logits_beyond_the_largest_buffer_are_refused(canvas_bundle: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The kernels would leave them out without an error: lavapipe binds 128 MiB at once."""
    adapter = webgpu_device(DEVICE)
    assert softmax_is_right(adapter, 128, 1 << 18)
    if is_software(adapter):
        assert not softmax_is_right(adapter, 129, 1 << 18)
    monkeypatch.setattr(webgpu_forward, "softmax_is_right", lambda *_: False)
    monkeypatch.setattr(webgpu_forward, "_SMALLEST_LIMIT", 1000)
    refused = pytest.raises(BadInputError, match="16 sampled positions of 384 tokens")
    with Decoder.open(canvas_bundle, [DEVICE]) as limited, refused:
        limited.generate("3", max_new_tokens=16)


def test_a_standard_graph_has_host_caches(tiny_bundle_logits: Path) -> None:
    standard = Bundle.open(tiny_bundle_logits)
    with _opened(standard) as session:
        assert type(vars(session)["_inner"]) is HostSession
        assert assert_cases_agree(standard, session, rows=True, taken=fits(prefix=64, window=40))


def test_growing_prefixes(portable: Bundle) -> None:
    with _opened(portable) as session:
        assert_growth_agrees(portable, session, ends=(6,))


def test_sessions_on_several_threads(portable: Bundle) -> None:
    """The plug-in has one device per process and is not safe for threads."""
    with _opened(portable, "cpu") as plain:
        batches = [random_batch(np.random.default_rng(seed), (0,), 2, 32, 8) for seed in range(4)]
        expected = [sequential(plain).forward(batch) for batch in batches]

    def forwards(_: int) -> list[Statistics]:
        with _opened(portable) as session:
            return [sequential(session).forward(batch) for batch in batches]

    with ThreadPoolExecutor(3) as threads:
        for found in threads.map(forwards, range(3)):
            for one, other in zip(found, expected, strict=True):
                assert_same_statistics(one, other)


def test_only_inputs_and_statistics_are_transferred(portable: Bundle) -> None:
    """A commit uploads the numbers of its rows, and downloads nothing. Cached rows never leave the device."""
    session = session_with_device_caches(portable, DEVICE, webgpu_device(DEVICE))
    memory = session._memory
    assert isinstance(memory, WebGpuMemory)
    sizes, rng = portable.manifest.dimensions, np.random.default_rng(0)
    sequential(session).forward(random_batch(rng, (0,), 2, 48, 10))
    sequential(session).commit(0, 1, 40)
    before = memory.transfers.downloaded, memory.transfers.uploaded
    sequential(session).forward(random_batch(rng, (0,), 2, 48, 10, starts=[40]))
    statistics = 2 * 10 * (8 * 8 + 4 * 8 + 4 + 4 * sizes.vocab_size)  # ids, log-probabilities, entropy, logits
    assert memory.transfers.downloaded - before[0] == statistics
    rows = 2 * sizes.layers * sizes.kv_heads * 64 * sizes.head_size * 4
    assert memory.transfers.uploaded - before[1] < rows
    session.close()


def test_memory_is_bound_as_what_it_is() -> None:
    adapter = webgpu_device(DEVICE)
    info = adapter.memory_info(ort.OrtDeviceMemoryType.DEFAULT)
    name, number = WebGpuMemory(adapter).place
    bound = ort.OrtDevice.make(name, number)._get_c_device()
    assert (bound.vendor_id(), bound.device_id()) == (info.device_vendor_id, info.device_id)


def test_memory_is_freed(portable: Bundle) -> None:
    session = session_with_device_caches(portable, DEVICE, webgpu_device(DEVICE))
    memory, rng = session._memory, np.random.default_rng(0)
    assert isinstance(memory, WebGpuMemory)
    left = set()
    for _ in range(3):
        for request in range(4):
            sequential(session).forward(random_batch(rng, (request,), 2, 32, 4))
            sequential(session).commit(request, 1, 32)
        assert memory.allocated_bytes > min(left, default=0)
        for request in range(4):
            session.free(request)
        left.add(memory.allocated_bytes)
    assert len(left) == 1
    session.close()
    assert memory.allocated_bytes == 0


@pytest.mark.parametrize("options", [{"dtype": "float16"}, {"quantize": "int8"}, {"quantize": "int4"}], ids=str)
def test_rounded_bundles_agree_with_numpy(options: dict[str, str], export_tiny: Callable[..., Path]) -> None:
    bundle = Bundle.open(export_tiny(with_logits=True, dialects=("portable",), **options))
    with _opened(bundle) as session:
        assert type(vars(session)["_inner"]) is DeviceSession
        rounding = FLOAT16_SUMS if "dtype" in options else None
        report = report_from_session(session, bundle.manifest, [NumpyReference(bundle)], rounding=rounding)
        assert report.ok, [each for each in report.errors if not each.ok]
