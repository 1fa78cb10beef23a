"""The references of the stand-in driver take the arguments that the kernels take: names, order and sizes.

The host library passes arguments by position, and the stand-in driver unpacks them by position.
"""

import sys
from pathlib import Path

import pytest
from tests.plugins import kernel_calls
from tests.plugins.conftest import Kernels
from tests.runtime.cuda_kernels.launched_kernels import KERNELS, argument_bytes, unpacked_names
from tests.runtime.cuda_kernels.stand_in_driver import StandInDriver
from tools.checks.kernel_table import index_of_archive

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="Triton is available on Linux only")
_POINTERS = [8, 8]
"""Arguments that Triton adds."""


def test_names_and_order(compiler: Kernels) -> None:
    references = {name: reference for name, (_, reference) in KERNELS.items()} | {"commit": StandInDriver.commit}
    found = {name: unpacked_names(reference, name) for name, reference in references.items()}
    assert found == compiler(kernel_calls.argument_names)


def test_sizes(compiler: Kernels, tmp_path: Path) -> None:
    first = {"rms_norm.fp32.1024", "split_rotary.fp32.64", "branch_attention.fp32.64", "attention_merge.fp32.64"}
    first |= {"int4_product.fp32.32", "rounded_product.fp32.int8.32", "product_merge.fp32", "round_rows.fp32"}
    names = first | {
        "scale_rows.fp32",
        "rounded_swiglu.fp32",
        "swiglu.fp32",
        "statistics_partials.fp32.8",
        "statistics_merge.8",
        "commit.8",
    }
    names |= {"expert_tasks", "expert_sum.fp32", "expert_gate_up.fp32", "expert_down.fp32"}
    names |= {
        f"expert_{name}" for name in ("gate_up_int4.fp32", "gate_up_rounded.int8", "down_int4.fp32", "down_rounded.fp8")
    }
    compiler(kernel_calls.write_archive, tmp_path / "sm_90.zip", "sm_90", sorted(names))
    compiled = index_of_archive(tmp_path / "sm_90.zip")["kernels"]
    assert {name.partition(".")[0]: entry["parameters"] for name, entry in compiled.items()} == {
        name: argument_bytes(name) + _POINTERS for name in KERNELS
    }
