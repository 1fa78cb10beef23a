"""Holds a bundle and the CUDA engine against the real onnxruntime-gpu, on a machine without a GPU.

    pip install --no-deps --target FOLDER onnxruntime-gpu==1.31.0
    python -m tools.vendors.check_cuda_provider BUNDLE FOLDER --headers /usr/local/cuda/include

The provider's own code opens the graph, places every node and captures CUDA graphs; NVIDIA's libraries under it are
stand-ins (tests/runtime/cuda/stand_in_libraries.c, compiled here; needs gcc, nm and the headers of CUDA 13), whose
kernels compute nothing. So this tells whether a graph can be captured, and what is called in which order, but no
result and no time. With ORT_ENABLE_ATTENTION_KERNEL_DEBUG_INFO=1 ONNX Runtime says which kernels of attention it takes.
"""

import argparse
import ctypes
import re
import subprocess
import sys
import tempfile
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Sequence
from enum import IntEnum
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from lopa.runtime.bundle import Bundle

STAND_IN = Path(__file__).parents[2] / "tests" / "runtime" / "cuda" / "stand_in_libraries.c"
_RUNTIME = "libcudart.so.13"
_NOT_WHILE_CAPTURING = {
    *("cudaMalloc", "cudaFree", "cudaMemcpy", "cudaMemset"),
    *("cudaStreamSynchronize", "cudaEventSynchronize", "cudaDeviceSynchronize"),
}
"""Calls that NVIDIA's documentation calls unsafe while a stream is captured, or that wait for it."""
_LAUNCHES = {"__cudaLaunchKernel", "cudaLaunchKernel"}
_COSTLY = _NOT_WHILE_CAPTURING | _LAUNCHES | {"cudaMemcpyAsync", "cudaMemsetAsync"}
_BUCKET = {"requests": 1, "branches": 2, "window": 32, "prefix": 64, "wanted": 16}


class CudaCode(IntEnum):
    """The only code of the stand-ins."""

    cudaSuccess = 0  # noqa: N815


class CudaKind(IntEnum):
    """What cudaMemcpyAsync is asked for."""

    cudaMemcpyDefault = 4  # noqa: N815


class StandInRuntime:
    """What the engine's memory calls of cuda.bindings.runtime, over the stand-in library."""

    cudaError_t = CudaCode  # noqa: N815
    cudaMemcpyKind = CudaKind  # noqa: N815
    cudaStreamNonBlocking = 1  # noqa: N815

    def __init__(self, library: Any) -> None:
        self._library = library
        library.stand_in_call.restype = ctypes.c_char_p

    def calls(self) -> list[str]:
        """The names of all calls so far, in order."""
        return [self._library.stand_in_call(number).decode() for number in range(self._library.stand_in_count())]

    def __getattr__(self, name: str) -> Callable[..., tuple[Any, ...]]:
        """Functions that give nothing but a code."""
        return lambda *arguments: (CudaCode(getattr(self._library, name)(*map(_argument, arguments))),)

    def cudaMalloc(self, size: int) -> tuple[CudaCode, int | None]:  # noqa: N802
        """As in cuda-bindings."""
        return self._given("cudaMalloc", size)

    def cudaStreamCreateWithFlags(self, flags: int) -> tuple[CudaCode, int | None]:  # noqa: N802
        """As in cuda-bindings."""
        return self._given("cudaStreamCreateWithFlags", flags)

    def _given(self, name: str, *arguments: Any) -> tuple[CudaCode, int | None]:
        given = ctypes.c_void_p()
        code = getattr(self._library, name)(ctypes.byref(given), *map(_argument, arguments))
        return CudaCode(code), given.value


def main() -> int:
    """Print what was found; 1 when something is not as the engine needs it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("bundle", type=Path)
    parser.add_argument("onnxruntime", type=Path, help="the folder that pip installed onnxruntime-gpu to")
    parser.add_argument("--headers", type=Path, default=Path("/usr/local/cuda/include"), help="[default: %(default)s]")
    given = parser.parse_args()
    cuda = stand_ins_for_provider(given.onnxruntime, given.headers)
    sys.path.insert(0, str(given.onnxruntime))

    from lopa.runtime.bundle import Bundle

    failures = list(failures_of_bundle(Bundle.open(given.bundle), cuda))
    for each in failures:
        print(f"FAILED: {each}")
    return 1 if failures else 0


def stand_ins_for_provider(folder: Path, headers: Path) -> StandInRuntime:
    """Load stand-ins for all NVIDIA libraries that the provider in `folder` needs; the loader takes what is there."""
    provider = folder / "onnxruntime" / "capi" / "libonnxruntime_providers_cuda.so"
    listed = subprocess.run(["nm", "-D", "--undefined-only", provider], check=True, capture_output=True, text=True)
    wanted = defaultdict[str, list[str]](list, {"libcurand.so.10": [], "libcuda.so.1": ["cuTensorMapEncodeTiled"]})
    for name, library in re.findall(r" (\w+)@(libcu\w+\.so\.\d+)$", listed.stdout, re.MULTILINE):
        wanted[library].append(name)
    text = STAND_IN.read_text()
    written = {*re.findall(r"\b(cuda\w+)\(", text), *re.findall(r"^(?:GIVES|DOES)\((\w+)", text, re.MULTILINE)}
    loaded = {}
    with tempfile.TemporaryDirectory() as made:
        for library, names in wanted.items():
            own = [str(STAND_IN)] if library == _RUNTIME else []
            source = Path(made, f"{library}.c")
            source.write_text("#include <stdlib.h>\n" + "".join(_function(n) for n in names if n not in written))
            versions = Path(made, f"{library}.map")
            versions.write_text(f"{library} {{ global: *; }};\n")
            path = Path(made, library)
            flags = ["-w", "-shared", "-fPIC", f"-I{headers}", f"-Wl,-soname,{library},--version-script={versions}"]
            subprocess.run(["gcc", *flags, "-o", path, source, *own], check=True)
            loaded[library] = ctypes.CDLL(str(path), mode=ctypes.RTLD_GLOBAL)
    return StandInRuntime(loaded[_RUNTIME])


def failures_of_bundle(bundle: "Bundle", cuda: StandInRuntime) -> Iterator[str]:
    """Run one bucket twice and another shape once, print what was called, and say what is wrong."""
    import onnxruntime

    from lopa.runtime.accelerator.arrays import GraphArrays
    from lopa.runtime.accelerator.memory import Buffer
    from lopa.runtime.bundle.buckets import ShapeBucket
    from lopa.runtime.cuda.calls import CudaCalls
    from lopa.runtime.cuda.forward import CudaForward
    from lopa.runtime.cuda.memory import CudaMemory

    bucket = ShapeBucket(**_BUCKET, seconds=1.0)
    other = ShapeBucket(**_BUCKET | {"branches": 3}, seconds=0.0)
    memory = CudaMemory(CudaCalls(cuda), 0)
    engine = CudaForward(bundle, memory, [bucket])
    print(f"onnxruntime-gpu {onnxruntime.__version__}: {bundle.path.name} opens for CUDA graphs")

    def calls_of_forward(shape: ShapeBucket) -> list[str]:
        forms = GraphArrays(bundle.manifest)
        arrays = forms.inputs(shape) | forms.outputs(shape)
        buffers = addresses.setdefault(
            shape, {name: Buffer(memory.allocate(array.size), array.size) for name, array in arrays.items()}
        )
        before = len(cuda.calls())
        engine.enqueue(shape, buffers)
        return cuda.calls()[before:]

    addresses: dict[ShapeBucket, dict[str, Buffer]] = {}
    first, again, without = (calls_of_forward(each) for each in (bucket, bucket, other))
    engine.close()
    for title, calls in (("a bucket's first forward", first), ("its next", again), ("another shape", without)):
        print(f"{title}: {', '.join(f'{count} {name}' for name, count in Counter(calls).items())}")
    yield from failures_of_calls(first, again, without)


def failures_of_calls(first: Sequence[str], again: Sequence[str], without: Sequence[str]) -> Iterator[str]:
    """What is wrong with the calls of a bucket's first and next forward, and of a shape that is no bucket."""
    if first.count("cudaStreamBeginCapture") != 1 or first.count("cudaGraphLaunch") != 1:
        yield "a bucket's first forward should capture one CUDA graph and launch it"
    else:
        captured = first[first.index("cudaStreamBeginCapture") : first.index("cudaStreamEndCapture")]
        if unsafe := _NOT_WHILE_CAPTURING & set(captured):
            yield f"while a CUDA graph is captured: {', '.join(sorted(unsafe))}"
        if not _LAUNCHES & set(captured):
            yield "the CUDA graph has no kernels"
    if again.count("cudaGraphLaunch") != 1 or _COSTLY & set(again):
        yield "a bucket's next forward should only launch its CUDA graph"
    if "cudaStreamBeginCapture" in without or "cudaStreamSynchronize" in without:
        yield "a shape that is no bucket should run as it is and not be waited for"


def _function(name: str) -> str:
    """Its definition in C: what makes something gives a handle, everything else says 0, which is success."""
    if name.endswith(("Create", "Create_v2")):
        return f"int {name}(void **given) {{ *given = malloc(256); return 0; }}\n"
    if name == "__cudaRegisterFatBinary":
        return f"void *{name}(void *binary) {{ return malloc(64); }}\n"
    return f"long {name}(void) {{ return 0; }}\n"


def _argument(value: Any) -> Any:
    """Addresses and sizes do not fit the int that ctypes takes a number for."""
    return ctypes.c_size_t(int(value))


if __name__ == "__main__":
    sys.exit(main())
