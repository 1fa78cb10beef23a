"""The whole decoder on "cuda:N", on stand-ins for the CUDA runtime and ONNX Runtime's CUDA provider."""

import inspect
import sys
import threading
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import msgspec
import numpy as np
import onnxruntime as ort
import pytest
from tests.buckets import bucket
from tests.runtime.canvas_decodes import CanvasDecodes
from tests.runtime.check_cases import assert_growth_agrees
from tests.runtime.cuda.stand_in_cudart import cudaError_t
from tests.runtime.cuda.stand_in_ort import StandInBinding, StandInOrt, StandInSession
from tests.runtime.device_contract import DeviceContract, Devices, forward_on
from tests.runtime.random_windows import assert_same_statistics, random_batch
from tests.runtime.sequential import sequential

from lopa import Decoder
from lopa.cli.start.doctor import command as doctor
from lopa.runtime.accelerator.device_memory import Buffer
from lopa.runtime.bundle import Bundle
from lopa.runtime.contract.model_part import ModelPart
from lopa.runtime.contract.sizes import Sizes
from lopa.runtime.cuda import cuda_session
from lopa.runtime.cuda.cuda_calls import MODULE, CudaCalls, load_cuda
from lopa.runtime.cuda.cuda_forward import CudaForward
from lopa.runtime.cuda.cuda_memory import CudaMemory
from lopa.runtime.cuda.driver import CudaDevice
from lopa.runtime.errors import BadInputError, EngineFailedError
from lopa.runtime.install_hint import pip_install
from lopa.runtime.sessions.session import forward_from_bundle, open_session


@pytest.fixture(params=["tiny_bundle_logits", "tiny_portable"])
def bundle(request: pytest.FixtureRequest) -> Bundle:
    return Bundle.open(request.getfixturevalue(request.param))


class TestContract(DeviceContract):
    missing = ((MODULE, "cuda-bindings"),)
    absent = "cudaErrorInvalidDevice"
    failure = "cudaErrorIllegalAddress"

    @pytest.fixture
    def devices(self, bundle: Bundle, machine: StandInOrt) -> Devices:
        def fail() -> None:
            machine.cudart.codes["cudaMemcpy2DAsync"] = [None] * 40 + [cudaError_t.cudaErrorIllegalAddress]

        def used() -> None:
            assert machine.waits == 0
            assert machine.captures == []
            assert machine.plain_runs > 15

        return Devices(bundle, "cuda:{}", fail, used)


class TestCanvases(CanvasDecodes):
    traces, seeds = 3, 2

    @pytest.fixture
    def decoder(self, canvas_bundle: Path, machine: StandInOrt) -> Iterator[Decoder]:
        with Decoder.open(canvas_bundle, ["cuda:0"]) as opened:
            yield opened
        assert machine.plain_runs > 15


def test_prefixes_grow_and_requests_are_released(bundle: Bundle, machine: StandInOrt) -> None:
    """Requests run together and alone, over several tiles. A released number is reused."""
    session = open_session(bundle, "cuda:2")
    lengths = assert_growth_agrees(bundle, session, rounds=2, most_branches=5, width=40, ends=(6, 13))
    assert lengths[1] > 256
    session.close()


def test_prefix_outside_all_buckets_is_freed(tiny_bundle: Path, machine: StandInOrt) -> None:
    session = open_session(Bundle.open(tiny_bundle), "cuda:0")
    rng = np.random.default_rng(5)
    left = []
    for requests in ((1,), (2, 3), (4,)):
        sequential(session).forward(random_batch(rng, requests, 2, 40, 8))
        before = machine.cudart.allocated(0)
        for request in requests:
            session.free(request)
        left.append(machine.cudart.allocated(0))
        assert left[-1] < before
    assert left[1] == left[2]
    session.close()


def test_only_statistics_are_downloaded(tiny_bundle: Path, machine: StandInOrt) -> None:
    session = open_session(Bundle.open(tiny_bundle), "cuda:0")
    rng = np.random.default_rng(0)
    sequential(session).forward(random_batch(rng, (0,), 2, 40, 8))
    sequential(session).commit(0, 1, 30)
    calls = dict(machine.cudart.calls)
    sequential(session).forward(random_batch(rng, (0,), 2, 40, 8, starts=30))
    assert machine.cudart.calls["cudaStreamSynchronize"] == calls["cudaStreamSynchronize"] + 1
    assert machine.cudart.calls["cudaMalloc"] == calls["cudaMalloc"]
    assert machine.cudart.calls["cudaMemcpyAsync"] == calls["cudaMemcpyAsync"] + 6 + 3  # inputs, statistics
    assert machine.cudart.calls["cudaMemcpy2DAsync"] == calls["cudaMemcpy2DAsync"]
    session.close()


def test_failing_forward_raises(bundle: Bundle, machine: StandInOrt) -> None:
    session = open_session(bundle, "cuda:0")
    machine.failures.append("CUDA failure 2: out of memory")
    with pytest.raises(EngineFailedError, match="ONNX Runtime on cuda:0: CUDA failure 2") as caught:
        sequential(session).forward(random_batch(np.random.default_rng(0), (0,), 1, 40, 8))
    assert caught.value.exit_code == 3
    session.close()


def test_rows_in_float16(tiny_half: Path, machine: StandInOrt) -> None:
    bundle = Bundle.open(tiny_half).with_twins()  # CPU graphs round to float16 at other places
    plain, session = open_session(bundle, "cpu", threads=1), open_session(bundle, "cuda:0")
    rng = np.random.default_rng(0)
    for start in (0, 30):
        batch = random_batch(rng, [1], 3, 30, 8, starts=start)
        assert_same_statistics(sequential(session).forward(batch), sequential(plain).forward(batch), tolerance=1e-4)
        for each in (plain, session):
            sequential(each).commit(1, 2, 30)
    plain.close()
    session.close()


def test_bfloat16_rows_are_bound_as_bfloat16(
    tiny_bundle: Path, machine: StandInOrt, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing is computed, because CPUs have no operators of that type."""
    opened, kinds = Bundle.open(tiny_bundle), dict[str, object]()

    def bind(name: str, _: str, __: int, kind: object, *___: object) -> None:
        kinds[name] = kind

    fake = SimpleNamespace(
        io_binding=lambda: SimpleNamespace(bind_input=bind, bind_output=bind),
        run_with_iobinding=lambda *_: None,
        get_providers=lambda: ["CUDAExecutionProvider"],
    )
    monkeypatch.setattr("lopa.runtime.cuda.provider_session.session_on_providers", lambda *_: fake)
    monkeypatch.setattr("lopa.runtime.cuda.provider_session.check_contract", lambda *_: None)
    bundle = replace(opened, manifest=msgspec.structs.replace(opened.manifest, dtype="bfloat16"))
    memory, shape = CudaMemory(CudaCalls(machine.cudart), 0), bucket(1, 2, 30, 64)
    CudaForward(bundle, "cuda:0", memory).enqueue(shape, defaultdict(lambda: Buffer(512, 512)))
    memory.close()
    rows = {kind for name, kind in kinds.items() if "key_values" in name}
    others = {name: kind for name, kind in kinds.items() if "key_values" not in name}
    assert rows == {16}
    assert others == {
        **dict.fromkeys(("input_ids", "position_ids", "logits_index", "topk_ids"), np.int64),
        **dict.fromkeys(("window_mask", "prefix_mask"), np.bool_),
        **dict.fromkeys(("temperature", "topk_logprobs", "entropy"), np.float32),
    }


@pytest.mark.parametrize(
    ("device", "name", "number", "tf32"), [("cuda", "cuda:0", 0, False), ("cuda:1:tf32", "cuda:1:tf32", 1, True)]
)
def test_tf32_is_off_unless_the_device_names_it(
    device: str, name: str, number: int, tf32: bool, tiny_bundle: Path, machine: StandInOrt
) -> None:
    """ONNX Runtime's own default is on."""
    session = open_session(Bundle.open(tiny_bundle), device)
    (opened,) = machine.sessions
    assert (session.device, opened.device, opened.tf32) == (name, number, tf32)
    session.close()


@pytest.mark.parametrize("tiny_quantized", ["fp8"], indirect=True)
def test_fp8_needs_a_gpu_with_fp8_or_operators(
    tiny_quantized: Path, machine: StandInOrt, monkeypatch: pytest.MonkeyPatch
) -> None:
    def opened_on(capability: str) -> None:
        gpu = CudaDevice(0, "Stand-in GPU", capability, 1 << 34, 13000)
        monkeypatch.setattr(cuda_session, "cuda_device", lambda _: gpu)
        open_session(Bundle.open(tiny_quantized), "cuda:0").close()

    opened_on("8.9")
    pattern = r"GPU of compute capability 8\.6, cannot run .* FP8 matrices, without this project's operators: off\n"
    monkeypatch.setattr(cuda_session, "cuda_operators", lambda *_: "off")
    with pytest.raises(BadInputError, match=pattern) as caught:
        opened_on("8.6")
    assert "--quantize int8" in caught.value.remedy
    assert len(machine.sessions) == 1
    part = ModelPart(0, 1, 5)
    with pytest.raises(BadInputError, match=r"FP8 matrices, without .* operators: pipeline stages have none"):
        forward_from_bundle(Bundle.open(tiny_quantized), part, "cuda", threads=None)
    assert len(machine.sessions) == 1

    def opened_with(*given: object) -> None:
        assert given[3] is operators
        raise BadInputError("reached the operators", expected="", remedy="")

    operators = SimpleNamespace(graph=tiny_quantized / "model.cuda.onnx")
    monkeypatch.setattr(cuda_session, "cuda_operators", lambda *_: operators)
    monkeypatch.setattr(cuda_session, "PackedForward", opened_with)
    with pytest.raises(BadInputError, match="reached the operators"):
        opened_on("8.6")


def test_session_runs_on_its_own_thread(bundle: Bundle, machine: StandInOrt) -> None:
    """The calling thread does not matter, although graphs belong to the thread that captured them."""
    session = open_session(bundle, "cuda:0")
    for _ in range(2):
        thread = threading.Thread(target=forward_on, args=(session,))
        thread.start()
        thread.join()
    assert machine.replays + machine.plain_runs >= 2
    session.close()


def test_doctor(machine: StandInOrt, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    def state() -> str:
        doctor(["--all"], standalone_mode=False)
        return capsys.readouterr().out.partition("cuda:N: ")[2].splitlines()[0]

    assert state() == "ready (4 devices)"
    machine.cudart.codes["cudaGetDeviceCount"] = [cudaError_t.cudaErrorInsufficientDriver]
    assert state().startswith("cudaGetDeviceCount returned cudaErrorInsufficientDriver")
    monkeypatch.setitem(sys.modules, MODULE, None)
    assert state() == f"no cuda-bindings: {pip_install('gpu')}"
    monkeypatch.setattr(ort, "get_available_providers", lambda: ["CPUExecutionProvider"])
    assert state().startswith("no CUDA provider in ONNX Runtime: ")


def test_stand_in_matches_the_real_onnx_runtime() -> None:
    """Compare names and order of arguments."""
    for ours, theirs in (
        (StandInBinding.bind_input, ort.IOBinding.bind_input),
        (StandInBinding.bind_output, ort.IOBinding.bind_output),
        (StandInSession.run_with_iobinding, ort.InferenceSession.run_with_iobinding),
        (StandInSession.get_providers, ort.InferenceSession.get_providers),
        (StandInSession.io_binding, ort.InferenceSession.io_binding),
    ):
        assert list(inspect.signature(ours).parameters) == list(inspect.signature(theirs).parameters)


@pytest.mark.parametrize(("window", "expected"), [(97, 100), (100, 100), (101, 104)])
def test_windows_are_rounded_up_for_fused_attention(
    window: int, expected: int, tiny_bundle: Path, machine: StandInOrt
) -> None:
    memory = CudaMemory(load_cuda(), 0)
    engine = CudaForward(Bundle.open(tiny_bundle), "cuda:0", memory)
    shape = engine.bucket_for(Sizes(2, 3, window, 128, 5))
    engine.close()
    memory.close()
    assert (shape.requests, shape.branches, shape.window, shape.prefix, shape.wanted) == (2, 3, expected, 128, 5)
    assert machine.plain_runs == 0
