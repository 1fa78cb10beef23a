"""Options of ONNX Runtime's CUDA provider, and what ONNX Runtime itself prints when they are passed."""

from pathlib import Path
from typing import Any

import onnxruntime as ort
import pytest

from lopa.runtime.bundle import Bundle
from lopa.runtime.contract.model_part import whole_model
from lopa.runtime.errors import BadInputError
from lopa.runtime.sessions import onnxruntime_graph
from lopa.runtime.sessions.onnxruntime_graph import check_types, open_part_graph
from lopa.runtime.sessions.providers import cuda_providers, session_on_providers

WARNING = "No registered plugin EP device found for 'CUDAExecutionProvider'"
CPU = ("CPUExecutionProvider", {})


@pytest.mark.parametrize(
    ("device", "options"),
    [
        ("cuda", {"use_tf32": "0"}),
        ("cuda:0", {"use_tf32": "0"}),
        ("cuda:2", {"use_tf32": "0", "device_id": "2"}),
        ("cuda:tf32", {"use_tf32": "1"}),
        ("cuda:1:tf32", {"use_tf32": "1", "device_id": "1"}),
    ],
)
def test_options(device: str, options: dict[str, str]) -> None:
    assert cuda_providers(device) == [("CUDAExecutionProvider", options), CPU]
    assert cuda_providers(device, enable_cuda_graph="1")[0][1] == options | {"enable_cuda_graph": "1"}


def test_tf32_without_effect_is_refused(tiny_bundle: Path, tiny_bfloat16: Path) -> None:
    with pytest.raises(BadInputError, match=r"'cuda:1:tf32' has no effect on .* a bundle in bfloat16") as caught:
        check_types(Bundle.open(tiny_bfloat16), "cuda:1:tf32")
    assert caught.value.remedy == "use --device cuda:1"
    check_types(Bundle.open(tiny_bundle), "cuda:1:tf32")
    check_types(Bundle.open(tiny_bfloat16), "cuda:1")


@pytest.mark.parametrize(
    ("value", "refused", "remedy"),
    [
        ("1", "cuda:0", "unset NVIDIA_TF32_OVERRIDE, or use --device cuda:0:tf32"),
        ("0", "cuda:0:tf32", "unset NVIDIA_TF32_OVERRIDE, or use --device cuda:0"),
    ],
)
def test_environment_that_contradicts_the_device_is_refused(
    value: str, refused: str, remedy: str, tiny_bundle: Path, tiny_bfloat16: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NVIDIA_TF32_OVERRIDE", value)
    for device in ("cuda:0", "cuda:0:tf32"):
        if device != refused:
            check_types(Bundle.open(tiny_bundle), device)
            continue
        with pytest.raises(BadInputError, match=f"NVIDIA_TF32_OVERRIDE={value} in the environment") as caught:
            check_types(Bundle.open(tiny_bundle), device)
        assert caught.value.remedy == remedy
    check_types(Bundle.open(tiny_bfloat16), "cuda:0")  # has no products of float32
    check_types(Bundle.open(tiny_bundle), "cpu")
    monkeypatch.setenv("NVIDIA_TF32_OVERRIDE", "")
    check_types(Bundle.open(tiny_bundle), refused)


@pytest.mark.filterwarnings("ignore:Specified provider")
@pytest.mark.parametrize("device", ["cuda:0", "cuda:1"])
def test_no_warning_about_plugins(device: str, tiny_bundle: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """ONNX Runtime prints it for every provider option device_id, also in a build without CUDA."""
    graph = Bundle.open(tiny_bundle).graph
    options = ort.SessionOptions()
    options.log_severity_level = 3
    named = [("CUDAExecutionProvider", {"device_id": "0"}), CPU]
    ort.InferenceSession(str(graph), options, providers=named)
    if WARNING not in capfd.readouterr().err:
        pytest.skip("this version of ONNX Runtime does not warn")
    session_on_providers(graph, options, cuda_providers(device))
    assert WARNING not in capfd.readouterr().err
    ort.InferenceSession(str(graph), options, providers=named)
    assert WARNING in capfd.readouterr().err  # the severity is restored


def test_stages_with_and_without_tf32_share_no_graph(tiny_bundle: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    bundle, real, passed = Bundle.open(tiny_bundle), ort.InferenceSession, []

    class OnCuda:
        def __init__(self, graph: Path, _options: Any, providers: Any) -> None:
            passed.append(providers[0])
            real_session = real(str(graph), _options, providers=["CPUExecutionProvider"])
            self.get_inputs, self.get_outputs = real_session.get_inputs, real_session.get_outputs

        def get_providers(self) -> list[str]:
            return ["CUDAExecutionProvider"]

    monkeypatch.setattr(onnxruntime_graph, "session_on_providers", OnCuda)
    monkeypatch.setattr(onnxruntime_graph, "load_cuda_libraries", lambda: ())
    monkeypatch.setattr(ort, "get_available_providers", lambda: ["CUDAExecutionProvider"])
    part = whole_model(bundle.manifest.dimensions.layers)
    graphs = [open_part_graph(bundle, part, device, 1) for device in ("cuda:0", "cuda:0:tf32", "cuda:1", "cuda")]
    assert passed == [cuda_providers(device)[0] for device in ("cuda:0", "cuda:0:tf32", "cuda:1")]
    assert graphs[0] is graphs[3]
    assert len(set(map(id, graphs))) == 3
