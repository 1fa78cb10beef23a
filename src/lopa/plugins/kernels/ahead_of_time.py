"""Ahead-of-time compilation of a kernel for a GPU that may be absent, to be launched without Triton."""

import re
import subprocess
import tempfile
from dataclasses import dataclass

import triton
from triton import knobs
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from lopa.plugins.kernels.variants import ARGUMENT_TYPES, KERNELS, KernelVariant

_ENTRY = re.compile(r"\.entry\s+\w+\(([^)]*)\)")
_THREADS_OF_WARP = 32
_MULTIPLE_OF_16 = [["tt.divisibility", 16]]
"""Attribute of pointers, since tensors start at multiples of 16 bytes, and of some numbers."""


@dataclass(frozen=True)
class CompiledKernel:
    """Compiled kernel with launch parameters."""

    entry: str
    """Name of the kernel in the images."""
    ptx: str
    cubin: bytes
    threads: int
    """Threads per block, along the x axis."""
    shared: int
    """Bytes of dynamic shared memory."""
    parameters: tuple[int, ...]
    """Bytes of each parameter: the Triton kernel's arguments without constants, then two null pointers."""

    def registers_and_spills(self) -> tuple[int, int]:
        """Return the registers of a thread, and the bytes of its stack, where registers are spilled."""
        with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
            file.write(self.cubin)
            file.flush()
            command = [knobs.nvidia.cuobjdump.path, "--dump-resource-usage", file.name]
            text = subprocess.run(command, check=True, capture_output=True, text=True, timeout=60).stdout
        registers, stack = re.findall(r"REG:(\d+) STACK:(\d+)", text)[0]
        return int(registers), int(stack)


def compiled_variant(variant: KernelVariant, target: int, ptx_version: int | None = None) -> CompiledKernel:
    """Compile a variant for a target, e.g. 90. `ptx_version` is the version of PTX, e.g. 80 for 8.0.

    Raises ValueError for a kernel that needs scratch memory of Triton's own launcher.
    """
    kernel, codes = KERNELS[variant.kernel]
    arguments = [name for name in kernel.arg_names if name not in variant.constants]
    types = dict(zip(arguments, codes, strict=True))
    signature = {
        name: "constexpr" if name in variant.constants else _triton_type(types[name], variant.floats)
        for name in kernel.arg_names
    }
    multiples = {(n,): _MULTIPLE_OF_16 for n, name in enumerate(kernel.arg_names) if types.get(name, "i") not in "if"}
    source = ASTSource(kernel, signature, constexprs=dict(variant.constants), attrs=multiples)
    options = {"num_warps": variant.warps, "num_stages": variant.stages, "ptx_version": ptx_version}
    knobs.compilation.disable_line_info = True  # without paths of this machine
    compiled = triton.compile(source, target=GPUTarget("cuda", target, _THREADS_OF_WARP), options=options)
    metadata = compiled.metadata
    if metadata.global_scratch_size or metadata.profile_scratch_size:
        raise ValueError(f"received {metadata.name} with scratch memory, expected a kernel without")
    ptx = compiled.asm["ptx"]
    threads = metadata.num_warps * _THREADS_OF_WARP
    return CompiledKernel(
        metadata.name, ptx, compiled.asm["cubin"], threads, metadata.shared, _parameters(ptx, len(arguments))
    )


def _triton_type(code: str, floats: str) -> str:
    return f"*{floats}" if code == "T" else ARGUMENT_TYPES[code]


def _parameters(ptx: str, arguments: int) -> tuple[int, ...]:
    """Return the bytes of each parameter of the only kernel in PTX. Triton appends two pointers to `arguments`."""
    sizes = tuple(int(bits) // 8 for bits in re.findall(r"\.param \.[a-z](\d+)", _ENTRY.findall(ptx)[0]))
    if sizes[arguments:] != (8, 8):
        raise ValueError(f"received parameters of {sizes} bytes, expected {arguments} and two pointers")
    return sizes


def ptx_without_scratch(ptx: str) -> str:
    """Return a kernel without Triton's two pointers, for a launcher that passes none."""
    parameters = _ENTRY.findall(ptx)[0]
    kept = ",".join(parameters.split(",")[:-2]).rstrip() + "\n"
    return ptx.replace(parameters, kept, 1)
