"""OpenVINO compared with numpy, ONNX Runtime and recorded traces; its settings and errors."""

import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.processor import HAS_VNNI
from tests.runtime.check_cases import assert_random_windows_agree
from tests.runtime.device_contract import DeviceContract, Devices
from tests.runtime.random_windows import batch_of_one, random_batch
from tests.runtime.sequential import sequential

from lopa.export.verify.report import report_from_bundle
from lopa.runtime import Decoder
from lopa.runtime.bundle import Bundle
from lopa.runtime.devices import session_from_devices
from lopa.runtime.errors import BadInputError, MissingBackendError
from lopa.runtime.openvino import openvino_model as model
from lopa.runtime.openvino import openvino_session as session
from lopa.runtime.openvino.openvino_library import OpenVinoDevice, openvino_core
from lopa.runtime.openvino.openvino_model import settings
from lopa.runtime.sessions.session import Session, open_session

openvino = pytest.importorskip("openvino")

DEVICE = "openvino:CPU"
BF16 = f"{DEVICE}:bf16"
HAS_BF16 = "BF16" in openvino_core(openvino).get_property("CPU", "OPTIMIZATION_CAPABILITIES")
needs_bf16 = pytest.mark.skipif(not HAS_BF16, reason="needs a processor with bfloat16")
PROMPT = "Question: There are 9 baskets at home, and each holds 6 candies. How many candies are there now?\nAnswer:"


class TestContract(DeviceContract):
    one_device = True
    missing = (("openvino", "2026"),)
    absent = "openvino:CPU"
    test_failing_device_is_dropped = None  # type: ignore[assignment]

    @pytest.fixture
    def devices(self, tiny_bundle: Path) -> Devices:
        return Devices(Bundle.open(tiny_bundle), DEVICE)

    def test_missing_device_raises(self, devices: Devices) -> None:
        for name in ("GPU.7", "NPU"):
            with pytest.raises(MissingBackendError, match="openvino:CPU") as caught:
                open_session(devices.bundle, f"openvino:{name}")
            assert "lists CPU" in caught.value.received
            assert caught.value.exit_code == 3


def test_stages_of_a_pipeline(tiny_staged: Path, opened: Callable[[Path, str], Session]) -> None:
    pipeline, whole = opened(tiny_staged, f"cpu+{DEVICE}"), opened(tiny_staged, "cpu")
    assert_random_windows_agree(pipeline, whole, seed=5, turns=5)


@pytest.mark.usefixtures("few_cases")
def test_bfloat16_bundle(tiny_bfloat16: Path, opened: Callable[[Path, str], Session]) -> None:
    """The bundle is computed in float32. Rows are stored as bfloat16 bits."""
    assert report_from_bundle(Bundle.open(tiny_bfloat16), device=DEVICE).ok
    ours = opened(tiny_bfloat16, DEVICE)
    sequential(ours).forward(random_batch(np.random.default_rng(0), [1], 2, 9, 2))
    assert {array.dtype for array in sequential(ours).read_rows(1, 1, 9).layers} == {np.dtype(np.uint16)}


@pytest.mark.usefixtures("few_cases")
@pytest.mark.parametrize("tiny_quantized", ["int8"], indirect=True)
def test_integer_bundles_pass_verify(tiny_quantized: Path) -> None:
    for device in (DEVICE, *([BF16] if HAS_BF16 else [])):
        assert report_from_bundle(Bundle.open(tiny_quantized), device=device).ok


@pytest.mark.usefixtures("few_cases")
def test_int8_rows_with_int4_weights(tiny_quantized: Path, opened: Callable[[Path, str], Session]) -> None:
    """The error is within verify's tolerance and shows rounding. A result does not depend on batch mates."""
    bundle = Bundle.open(tiny_quantized)
    assert bundle.manifest.quantization is not None
    if bundle.manifest.quantization.kind == "int8":
        with pytest.raises(BadInputError, match="4-bit matrices"):
            open_session(bundle, f"{DEVICE}:int8")
        return
    report = report_from_bundle(bundle, device=f"{DEVICE}:int8")
    assert report.ok
    if not HAS_VNNI:
        pytest.skip("OpenVINO rounds no rows on processors without VNNI")
    assert max(error.measured for error in report.errors) > 1e-3  # 1e-6 in float32
    batch = random_batch(np.random.default_rng(6), [1, 2], 2, 20, 4)
    rounded = opened(tiny_quantized, f"{DEVICE}:int8")
    together, alone = sequential(rounded).forward(batch), sequential(rounded).forward(batch_of_one(batch, 1))
    np.testing.assert_array_equal(alone.topk_logprobs[0], together.topk_logprobs[1])


@pytest.mark.usefixtures("few_cases")
@needs_bf16
def test_bfloat16_and_float32_have_different_tolerances(tiny_bundle: Path) -> None:
    """Products have 8 bits, far outside float32's tolerance and within bfloat16's."""
    bundle = Bundle.open(tiny_bundle)
    rounded, exact = (report_from_bundle(bundle, device=device) for device in (BF16, DEVICE))
    assert rounded.ok
    assert exact.ok
    assert {error.tolerance for error in rounded.errors} == {0.2}
    assert {error.tolerance for error in exact.errors} == {1e-4}
    assert max(error.measured for error in rounded.errors) > 1e-3


def test_results_do_not_depend_on_the_batch(tiny_bundle: Path, opened: Callable[[Path, str], Session]) -> None:
    """Results are bitwise equal, repeatedly, in a batch and alone."""
    ours = opened(tiny_bundle, DEVICE)
    batch = random_batch(np.random.default_rng(3), [1, 2, 3], 2, 33, 9)
    together = [sequential(ours).forward(batch) for _ in range(2)]
    np.testing.assert_array_equal(together[0].topk_logprobs, together[1].topk_logprobs)
    for slot in range(3):
        alone = sequential(ours).forward(batch_of_one(batch, slot))
        np.testing.assert_array_equal(alone.topk_logprobs[0], together[0].topk_logprobs[slot])
        np.testing.assert_array_equal(alone.topk_ids[0], together[0].topk_ids[slot])


def test_arrays_are_bound_without_copies(tiny_bundle: Path) -> None:
    """OpenVINO's tensors share memory with the cache, and let go of it with the request."""
    ours = open_session(Bundle.open(tiny_bundle), DEVICE, threads=1)
    binding, rng = ours._forward._binding, np.random.default_rng(1)  # type: ignore[attr-defined]
    for start, width in ((0, 64), (64, 20), (84, 64), (148, 7)):
        sequential(ours).forward(random_batch(rng, [1], 2, width, 5, starts=start))
        sequential(ours).commit(1, 1, width)
    found = sequential(ours).forward(random_batch(rng, [1], 2, 33, 5, starts=155))
    np.testing.assert_array_equal(binding._request.get_tensor("topk_logprobs").data, found.topk_logprobs)
    cache = ours._caches[1].prefix  # type: ignore[attr-defined]
    for array, name in zip(cache.arrays[:2], ("past_key_values.0.key", "past_key_values.0.value"), strict=True):
        assert binding._request.get_tensor(name).data.ctypes.data == array.ctypes.data
    ours.free(1)
    assert all(binding._request.get_tensor(port.any_name).size == 0 for port in binding._model.compiled.inputs)
    ours.close()


def test_settings_that_affect_results_are_explicit(tiny_bundle: Path) -> None:
    """Read the settings back from the compiled model. The defaults use bfloat16 and 8-bit rows if possible."""
    opened = open_session(Bundle.open(tiny_bundle), DEVICE, threads=1)
    compiled = opened._forward._binding._model.compiled  # type: ignore[attr-defined]
    for name, expected in (
        ("INFERENCE_PRECISION_HINT", openvino.Type.f32),
        ("INFERENCE_NUM_THREADS", 1),
        ("NUM_STREAMS", 1),
        ("ENABLE_CPU_PINNING", False),
        ("DYNAMIC_QUANTIZATION_GROUP_SIZE", 0),
    ):
        assert compiled.get_property(name) == expected
    opened.close()


def test_a_gpu_rounds_nothing_unasked() -> None:
    """A GPU's defaults are float16 and rows of 8 bits. No OpenVINO GPU was at hand to run it."""
    for name in ("GPU", "GPU.1"):
        found = settings(OpenVinoDevice(name, None), None)
        assert found == {
            "INFERENCE_PRECISION_HINT": "f32",
            "PERFORMANCE_HINT": "LATENCY",
            "DYNAMIC_QUANTIZATION_GROUP_SIZE": 0,
        }
    assert "DYNAMIC_QUANTIZATION_GROUP_SIZE" not in settings(OpenVinoDevice("NPU", None), None)  # has no such property


class InterruptedRequest:
    """A request that a signal interrupts when it has started."""

    def __init__(self, request: Any) -> None:
        self._request = request

    def __getattr__(self, name: str) -> Any:
        return getattr(self._request, name)

    def start_async(self) -> None:
        self._request.start_async()
        signal.raise_signal(signal.SIGUSR1)


@pytest.mark.parametrize("times", [1, 2])
def test_an_interrupted_forward_ends_before_the_next_use(
    tiny_bundle: Path, monkeypatch: pytest.MonkeyPatch, times: int
) -> None:
    """OpenVINO rejects every use of a request that runs. The second signal interrupts the cleanup."""
    late = [TimeoutError("first"), TimeoutError("second")]
    left = late[:times]

    def handle(_: int, __: Any) -> None:
        raise left.pop(0)

    def wait_with_signal(self: Any) -> None:
        if len(left) == 1 and times == 2:
            signal.raise_signal(signal.SIGUSR1)
        self.bind_inputs(self._empty)

    with Decoder.open(tiny_bundle, [DEVICE], threads=1) as decoder:
        expected = decoder.generate(PROMPT, max_new_tokens=16).token_ids
        binding = decoder.session._forward._binding  # type: ignore[attr-defined]
        long = (*decoder.tokenizer.encode(PROMPT, add_bos=True),) * 40
        before = signal.signal(signal.SIGUSR1, handle)
        try:
            with monkeypatch.context() as patch:
                patch.setattr(binding, "_request", InterruptedRequest(binding._request))
                patch.setattr(session.OpenVinoBinding, "unbind_inputs", wait_with_signal)
                with pytest.raises(TimeoutError) as caught:
                    decoder.generate(long[:1800], max_new_tokens=16, branches=8)
        finally:
            signal.signal(signal.SIGUSR1, before)
        assert caught.value is late[times - 1]
        assert not left
        for _ in range(2):
            assert decoder.generate(PROMPT, max_new_tokens=16).token_ids == expected


class _Core:
    """A machine as OpenVINO describes it."""

    def __init__(self, devices: list[str], capabilities: list[str]) -> None:
        self.available_devices, self._capabilities = devices, capabilities

    def get_property(self, _: str, name: str) -> Any:
        return self._capabilities if name == "OPTIMIZATION_CAPABILITIES" else "Some Processor"


def test_bfloat16_on_a_processor_without_it_raises() -> None:
    core = _Core(["CPU", "GPU.0", "GPU.1"], ["FP32", "INT8"])
    model.check_listed(core, "openvino:GPU")
    model.check_listed(core, "openvino:GPU.1")
    with pytest.raises(MissingBackendError, match="Some Processor has only FP32, INT8") as caught:
        model.check_listed(core, BF16)
    assert "openvino:CPU, which" in caught.value.remedy


def test_portable_graph_raises(tiny_portable: Path) -> None:
    with pytest.raises(BadInputError, match="--dialect both"):
        open_session(Bundle.open(tiny_portable), DEVICE)


@pytest.mark.parametrize("tiny_quantized", ["fp8"], indirect=True)
def test_fp8_matrices_raise(tiny_quantized: Path) -> None:
    with pytest.raises(BadInputError, match="a bundle with FP8 matrices"):
        open_session(Bundle.open(tiny_quantized), DEVICE)


def test_graph_with_functions_raises(tiny_plugins: Path) -> None:
    with pytest.raises(BadInputError, match="without --plugins") as caught:
        open_session(Bundle.open(tiny_plugins), DEVICE)
    assert "TokenStatistics" in caught.value.received


@pytest.mark.parametrize("other", ["cpu", "cpu:0", BF16])
def test_devices_that_share_the_cpu_raise(tiny_bundle: Path, other: str) -> None:
    with pytest.raises(BadInputError, match="has every core"):
        session_from_devices(Bundle.open(tiny_bundle), [DEVICE, other])
