"""The references of the stand-in driver take the arguments that the kernels take: names, order and sizes.

The host library passes arguments by position, and the stand-in driver unpacks them by position.
"""

import sys

import pytest
from tests.plugins import kernel_calls
from tests.plugins.conftest import Kernels
from tests.runtime.cuda_kernels.compiled_sample import compiled_sample
from tests.runtime.cuda_kernels.launched_kernels import KERNELS, argument_bytes, unpacked_names
from tests.runtime.cuda_kernels.stand_in_driver import StandInDriver
from tests.shared_folder import shared_folder
from tools.checks.kernel_table import index_of_archive

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="Triton is available on Linux only")
_POINTERS = [8, 8]
"""Arguments that Triton adds."""


def test_names_and_order(compiler: Kernels) -> None:
    references = {name: reference for name, (_, reference) in KERNELS.items()} | {"commit": StandInDriver.commit}
    found = {name: unpacked_names(reference, name) for name, reference in references.items()}
    assert found == compiler(kernel_calls.argument_names)


def test_sizes(tmp_path_factory: pytest.TempPathFactory) -> None:
    compiled = index_of_archive(compiled_sample(shared_folder(tmp_path_factory)))["kernels"]
    names = {variant: variant.partition(".")[0] for variant in compiled}
    assert {*names.values()} == {*KERNELS}
    for variant, name in names.items():
        assert compiled[variant]["parameters"] == argument_bytes(name) + _POINTERS, variant
