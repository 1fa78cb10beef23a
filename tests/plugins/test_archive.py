"""Archives: what the index says, images that assemble, and the table of registers, spills and shared memory."""

import subprocess
import sys
import zipfile
from pathlib import Path
from typing import Any

import pytest
from tests.plugins import kernel_calls
from tests.plugins.conftest import Kernels
from tools.checks.kernel_table import cell, index_of_archive, read_table

NAMES = ("swiglu.bf16", "commit.2", "statistics_merge.8")
SAMPLE = (
    "rms_norm.bf16.skip.4096",
    "split_rotary.fp16.norm.128",
    "attention_merge.fp32.64",
    "branch_attention.bf16.64",
)
pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="Triton is available on Linux only")


@pytest.fixture(scope="module")
def archives(compiler: Kernels, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Return archives of a few variants for each of three targets."""
    folder = tmp_path_factory.mktemp("archives")
    for target, names in (("sm_90", NAMES + SAMPLE), ("sm_120", NAMES), ("compute_80", NAMES)):
        compiler(kernel_calls.write_archive, folder / f"{target}.zip", target, names)
    return {path.stem: path for path in folder.iterdir()}


def test_compiled_kernels_are_those_of_the_table(archives: dict[str, Path]) -> None:
    """After a change of a kernel or of Triton, `make kernels` writes the table again."""
    table = read_table()
    for target, path in archives.items():
        for name, entry in index_of_archive(path)["kernels"].items():
            assert cell(entry) == table[target][name], (target, name)


def test_every_variant_of_every_target_is_in_the_table(compiler: Kernels) -> None:
    """Check also that no registers are spilled, and that blocks fit the GPU's shared memory."""
    table = read_table()
    expected: dict[str, tuple[list[str], int]] = compiler(kernel_calls.variants_of_targets)
    assert set(table) == set(expected)
    for target, (names, kib) in expected.items():
        assert set(table[target]) == set(names)
        assert len(names) <= 160
        for name, text in table[target].items():
            registers, spills, shared = map(int, text.split("/"))
            assert 0 < registers <= 255
            assert (spills, shared <= kib * 1024) == (0, True), (target, name)


def test_index(archives: dict[str, Path]) -> None:
    index = index_of_archive(archives["sm_90"])
    assert (index["format"], index["target"], index["cuda"], index["driver"]) == (1, "sm_90", 12000, "525.60.13")
    assert index_of_archive(archives["sm_120"])["cuda"] == 13000
    kernels: dict[str, dict[str, Any]] = index["kernels"]
    assert set(kernels) == set(NAMES + SAMPLE)
    swiglu = kernels["swiglu.bf16"]
    assert (swiglu["entry"], swiglu["file"], swiglu["threads"]) == ("swiglu_kernel", "swiglu.bf16.cubin", 128)
    assert swiglu["parameters"] == [8, 8, 8, 8, 4, 8, 4, 4, 4, 8, 8]  # pointers, four numbers, and two null pointers
    assert swiglu["constants"] == {"BLOCK": 1024}
    assert kernels["commit.2"]["parameters"] == [8, *[4] * 8, 8, 8]
    constants = kernels["branch_attention.bf16.64"]["constants"]
    assert constants["CHUNK_ROWS"] % constants["COLUMNS"] == 0
    assert kernels["rms_norm.bf16.skip.4096"]["threads"] == 256


def test_images(archives: dict[str, Path], tmp_path: Path) -> None:
    """Check that images have their entry and no path of this machine, and that PTX assembles for later GPUs."""
    for target, path in archives.items():
        with zipfile.ZipFile(path) as archive:
            for entry in index_of_archive(path)["kernels"].values():
                image = archive.read(entry["file"])
                assert entry["entry"].encode() in image
                assert str(Path.cwd()).encode() not in image
                assert b".py" not in image
                if target != "compute_80":
                    assert image.startswith(b"\x7fELF")
                    continue
                assert b"\n.version 8.0\n.target sm_80\n" in image
                (tmp_path / "kernel.ptx").write_bytes(image)
                for assembler, architecture in (("ptxas", "sm_89"), ("ptxas-blackwell", "sm_110")):
                    _assemble(tmp_path / "kernel.ptx", assembler, architecture)


def _assemble(path: Path, assembler: str, architecture: str) -> None:
    import triton.backends.nvidia

    program = Path(triton.backends.nvidia.__file__).parent / "bin" / assembler
    command = [program, f"-arch={architecture}", "-o", path.with_suffix(".cubin"), path]
    subprocess.run(command, check=True, capture_output=True, timeout=300)


def test_the_same_bytes_again(archives: dict[str, Path], compiler: Kernels, tmp_path: Path) -> None:
    compiler(kernel_calls.write_archive, tmp_path / "again.zip", "sm_120", NAMES)
    assert (tmp_path / "again.zip").read_bytes() == archives["sm_120"].read_bytes()


def test_parameters_without_the_scratch_pointers() -> None:
    from lopa.plugins.kernels.ahead_of_time import ptx_without_scratch

    ptx = ".visible .entry f(\n\t.param .u64 a,\n\t.param .u32 b,\n\t.param .u64 c,\n\t.param .u64 d\n)\n{ld [a];}"
    assert ptx_without_scratch(ptx) == ".visible .entry f(\n\t.param .u64 a,\n\t.param .u32 b\n)\n{ld [a];}"
