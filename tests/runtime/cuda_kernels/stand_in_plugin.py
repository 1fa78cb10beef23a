"""Plugin for pytest: the device cuda:N on stand-ins, with our operators on ONNX Runtime's CPU provider.

    LOPA_TEST_DEVICE=cuda:{} pytest -p tests.runtime.cuda_kernels.stand_in_plugin tests/conformance

decodes all recordings through the twin for CUDA, the host library, its task lists and launches. What it cannot show:
compiled kernels (their references run), and ONNX Runtime's CUDA memory and streams.
"""

import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.runtime.cuda.stand_in_cudart import StandInCudart
from tests.runtime.cuda.stand_in_ort import StandInOrt
from tests.runtime.cuda_kernels.compiled_sample import compiled_sample
from tests.runtime.cuda_kernels.stand_in_driver import StandInDriver
from tests.shared_folder import shared_folder

from lopa.runtime.cuda import cuda_operators
from lopa.runtime.cuda.cuda_calls import MODULE
from lopa.runtime.cuda_kernels.kernel_archive import archive_of_file


@pytest.fixture(scope="session", autouse=True)
def stand_in_machine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[StandInOrt]:
    """Install the stand-ins for the whole run. At the end, no reference may have refused a launch."""
    with tempfile.TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patch:
        cudart = StandInCudart(devices=8)
        driver = StandInDriver(Path(folder), cudart)
        archive = archive_of_file(compiled_sample(shared_folder(tmp_path_factory)))
        driver.watch(archive.kernels)
        patch.setattr(cuda_operators, "kernels_for_target", lambda _: archive)
        patch.setitem(sys.modules, MODULE, cudart)
        machine = StandInOrt(cudart, driver)
        machine.install(patch)
        yield machine
        assert cudart.violations == []
        assert driver.errors == []
        print(f"launches: {dict(sorted(driver.launches.items()))}")
