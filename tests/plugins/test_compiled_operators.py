"""Kernels compiled ahead of time, without a GPU: PTX that assembles, with the documented arguments."""

import re
import sys

import pytest
from tests.plugins import kernel_calls
from tests.plugins.conftest import Kernels

# Sizes of Dream-7B.
ATTENTION, PARTIALS = (28, 4, 128), (3584, 152064, 128)


@pytest.mark.parametrize(
    ("operator", "arguments", "kinds"),
    [
        ("compiled_branch_attention", ("fp32", *ATTENTION, (8, 0)), "pppppppnnnp"),
        ("compiled_branch_attention", ("bf16", *ATTENTION, (10, 0)), "pppppppnnnp"),
        ("compiled_branch_attention", ("fp16", 6, 2, 24, (9, 0)), "pppppppnnnp"),
        ("compiled_statistics_partials", ("bf16", *PARTIALS, (9, 0)), "pppnnppppp"),
        ("compiled_statistics_merge", (128, (9, 0)), "pppppppp"),
        ("compiled_commit", ("bf16", 4, 128, (9, 0)), "pnnnnnn"),
    ],
)
def test_ptx_with_the_documented_arguments(
    compiler: Kernels, operator: str, arguments: tuple[object, ...], kinds: str
) -> None:
    name, threads, shared, ptx = compiler(kernel_calls.compile_operator, operator, arguments)
    assert threads % 32 == 0
    assert shared <= 48 * 1024
    (parameters,) = re.findall(rf"\.entry {name}\(([^)]*)\)", ptx)
    found = ["p" if ".u64" in parameter else "n" for parameter in parameters.split(",")]
    assert "".join(found) == kinds


ENTRY = ".visible .entry f(\n\t.param .u64 f_param_0,\n\t.param .u32 f_param_1,\n\t.param .u64 f_param_2\n)\n{ld [%s];}"


@pytest.mark.skipif(sys.platform != "linux", reason="Triton is available on Linux only")
def test_only_unused_scratch_parameters_are_removed() -> None:
    from lopa.plugins.kernels.ahead_of_time import ptx_with_arguments

    kept = ".visible .entry f(\n\t.param .u64 f_param_0,\n\t.param .u32 f_param_1\n)\n{ld [f_param_1];}"
    assert ptx_with_arguments(ENTRY % "f_param_1", 2) == kept
    assert ptx_with_arguments(ENTRY % "f_param_2", 3) == ENTRY % "f_param_2"
    with pytest.raises(ValueError, match="received a kernel that uses f_param_2, expected 2 arguments"):
        ptx_with_arguments(ENTRY % "f_param_2", 2)
    with pytest.raises(ValueError, match="PTX without a kernel"):
        ptx_with_arguments("nothing", 2)


def test_tiles_that_need_too_much_shared_memory(compiler: Kernels) -> None:
    with pytest.raises(ValueError, match="bytes of shared memory, expected at most 49152"):
        compiler(kernel_calls.compile_operator, "compiled_branch_attention", ("fp32", 4, 4, 256, (8, 0)))
