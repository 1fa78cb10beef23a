"""The graph with our operators runs where it can. Otherwise the plain graph runs, with a reason that users can read."""

import logging
import os
import shutil
import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from msgspec import structs
from tests.cli.command import lopa_export

from lopa.runtime.bundle import Bundle
from lopa.runtime.bundle.manifest import MixtureOfExperts
from lopa.runtime.cuda import cuda_operators
from lopa.runtime.cuda.cuda_calls import CAPTURE_LOCK
from lopa.runtime.cuda.cuda_operators import CudaOperators, graph_text, loaded_library, unsupported_size
from lopa.runtime.cuda.driver import CudaDevice
from lopa.runtime.cuda.row_kernel import RowKernel, RowStrides
from lopa.runtime.cuda_kernels.cuda_library import CudaLibrary
from lopa.runtime.cuda_kernels.kernel_archive import KernelArchive, kernels_for_target
from lopa.runtime.errors import BadInputError, EngineFailedError
from lopa.runtime.sessions.prefix_cache import CacheShape

GPU = CudaDevice(0, "a GPU", "9.0", 80 << 30, 12040)
MOE = MixtureOfExperts(experts=2, experts_per_token=1, expert_size=16, shared_size=24, score="softmax", normalize=True)
ARCHIVE = KernelArchive("sm_90", {}, 12000, "525.60.13")


class Library(CudaLibrary):
    """A library whose kernels load or fail."""

    def __init__(self, error: EngineFailedError | None = None) -> None:
        object.__setattr__(self, "error", error)

    def load(self, device: int, kernels: Any) -> None:  # noqa: ARG002
        if (error := getattr(self, "error", None)) is not None:
            raise error


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    """Let a GPU, its kernels and the library be found."""
    monkeypatch.setattr(cuda_operators, "cuda_device", lambda _: GPU)
    monkeypatch.setattr(cuda_operators, "kernels_for_target", lambda _: ARCHIVE)
    monkeypatch.setattr(cuda_operators, "cuda_library", Library)
    return monkeypatch


@pytest.mark.parametrize(
    ("sizes", "expected"),
    [
        ({}, None),
        ({"head_size": 512}, "heads of 512, only up to 256"),
        ({"heads": 65, "kv_heads": 1}, "65 query heads per key-value head, only up to 64"),
        ({"hidden_size": 200}, "rows of 200 numbers, only multiples of 16"),
        ({"intermediate_size": 24}, "rows of 24 numbers, only multiples of 16"),
        (
            {"moe": MOE},
            "rows of 24 numbers, only multiples of 16",
        ),
        ({"head_size": 40}, "rows of 40 numbers, only multiples of 16"),
    ],
)
def test_sizes_without_a_kernel(sizes: dict[str, Any], expected: str | None, tiny_bundle: Path) -> None:
    bundle = Bundle.open(tiny_bundle)
    dimensions = structs.replace(bundle.manifest.dimensions, **sizes)
    assert unsupported_size(dimensions) == expected
    found = cuda_operators.cuda_operators(
        replace(bundle, manifest=structs.replace(bundle.manifest, dimensions=dimensions)), Library()
    )
    if expected is None:
        assert isinstance(found, CudaOperators)
        assert found.graph.name == "model.cuda.onnx"
    else:
        assert found == f"they do not support {expected}"


def test_bundles_without_the_graph(tiny_bundle: Path) -> None:
    bundle = Bundle.open(tiny_bundle)
    older = replace(bundle, manifest=structs.replace(bundle.manifest, twins=()))
    assert cuda_operators.cuda_operators(older, Library()) == (
        "the bundle has no graph with them that fits; export the checkpoint again, in the standard dialect"
    )
    assert cuda_operators.cuda_operators(bundle, "no kernels") == "no kernels"


def test_inspect_names_the_graph(tiny_bundle: Path, tiny_portable: Path, tmp_path: Path) -> None:
    """It also says why the plain graph runs instead."""
    assert "\nfor cuda    model.cuda.onnx  replaces model.onnx\n" in lopa_export("inspect", tiny_bundle).stdout
    assert "\nfor cuda    no graph with this project's operators, " in lopa_export("inspect", tiny_portable).stdout
    other = shutil.copytree(tiny_bundle, tmp_path / "other")
    with (other / "model.onnx").open("r+b") as graph:
        graph.seek(-1, os.SEEK_END)
        last = graph.read()
        graph.seek(-1, os.SEEK_END)
        graph.write(bytes([last[0] ^ 1]))
    shown = lopa_export("inspect", other).stdout
    assert "\nfor cuda    model.cuda.onnx  not used: made from ANOTHER model.onnx\n" in shown


def test_gpus_without_kernels(gpu: pytest.MonkeyPatch) -> None:
    assert isinstance(loaded_library(0), CudaLibrary)
    gpu.setattr(cuda_operators, "kernels_for_target", lambda _: replace(ARCHIVE, cuda=13000, driver="580.65.06"))
    assert loaded_library(0) == (
        "the driver supports CUDA 12.4, and the kernels for sm_90 need 13.0: install driver 580.65.06 or newer"
    )
    gpu.setattr(cuda_operators, "kernels_for_target", lambda _: "there are none")
    assert loaded_library(0) == "there are none"
    gpu.setattr(cuda_operators, "cuda_library", lambda: None)
    assert isinstance(loaded_library(0), str)


def test_the_kernels_can_be_switched_off(gpu: pytest.MonkeyPatch) -> None:
    gpu.setenv("LOPA_CUDA_KERNELS", "off")
    assert loaded_library(0) == "LOPA_CUDA_KERNELS=off"
    gpu.setenv("LOPA_CUDA_KERNELS", "of")
    with pytest.raises(BadInputError, match="LOPA_CUDA_KERNELS='of'") as caught:
        loaded_library(0)
    assert caught.value.expected == "auto or off"


def test_a_driver_that_rejects_the_kernels(
    gpu: pytest.MonkeyPatch, tiny_bundle: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The plain graph runs, and a warning and `verify` say so."""
    error = EngineFailedError("the kernels cannot be loaded: why", expected="a driver", remedy="update the driver")
    gpu.setattr(cuda_operators, "cuda_library", lambda: Library(error))
    with caplog.at_level(logging.WARNING):
        assert loaded_library(0) == "the kernels cannot be loaded: why"
    assert caplog.messages == [
        "the kernels cannot be loaded: why; the plain graph runs instead. Remedy: update the driver"
    ]
    gpu.setattr(cuda_operators, "cuda_library", Library)  # it loads on the thread that opens the device only
    assert graph_text(Bundle.open(tiny_bundle), 0) == (
        "model.onnx, without this project's operators: the kernels cannot be loaded: why"
    )
    loaded_library(0)
    assert graph_text(Bundle.open(tiny_bundle), 0) == "model.cuda.onnx, with this project's operators"


@pytest.mark.parametrize(
    ("message", "is_old"),
    [
        (b"libcuda.so.1 is missing or older than CUDA 12.0", True),
        (b"cuLibraryLoadData of swiglu.bf16 returned CUDA_ERROR_UNSUPPORTED_PTX_VERSION", True),
        (b"cuLibraryLoadData of swiglu.bf16 returned CUDA_ERROR_OUT_OF_MEMORY", False),
    ],
)
def test_only_errors_of_old_drivers_advise_a_newer_one(message: bytes, is_old: bool) -> None:
    load = SimpleNamespace(lopa_cuda_load=lambda _device, _images, _count, text, _size: setattr(text, "value", message))
    with pytest.raises(EngineFailedError, match=message.decode()) as caught:
        CudaLibrary(Path("library.so"), load).load(0, {})  # type: ignore[arg-type]
    assert (caught.value.remedy == "update the NVIDIA driver") is is_old


def test_kernels_are_not_loaded_during_a_capture(gpu: pytest.MonkeyPatch) -> None:
    """ONNX Runtime captures in global mode: loads of other threads fail then, and so does the capture."""
    loaded = threading.Event()
    gpu.setattr(Library, "load", lambda *_: loaded.set())
    with ThreadPoolExecutor(1) as pool:
        with CAPTURE_LOCK.exclusive():
            found = pool.submit(loaded_library, 0)
            assert not loaded.wait(0.2)
        assert isinstance(found.result(10), CudaLibrary)


@pytest.mark.parametrize(
    ("size", "dtype", "variant", "words"),
    [(128, np.uint16, "commit.8", 32), (6, np.uint16, "commit.4", 3), (2, np.uint16, "commit.4", 1)],
)
def test_rows_of_any_size_are_copied_whole(size: int, dtype: type, variant: str, words: int) -> None:
    """Heads may have any even size."""
    calls = []
    library = SimpleNamespace(launch=lambda *arguments: calls.append(arguments))
    kernel = RowKernel(library, CacheShape(arrays=4, kv_heads=2, head_size=size, dtype=np.dtype(dtype)))  # type: ignore[arg-type]
    kernel.launch(7, 512, 3, 17, RowStrides(10, 1, 2), RowStrides(20, 3, 4))
    ((name, grid, _, _, *numbers),) = calls
    assert (name, grid) == (variant, (3, 8, 3))
    assert [number.value for number in numbers] == [2, 10, 1, 2, 20, 3, 4, words]


def test_old_gpus_have_no_kernels() -> None:
    assert kernels_for_target("sm75") == "this GPU has compute capability 7.5, and they need 8 or newer"
