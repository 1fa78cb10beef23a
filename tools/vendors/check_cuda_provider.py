"""Check a bundle and the CUDA engine with the real onnxruntime-gpu on a machine without a GPU.

    pip install --no-deps --target FOLDER onnxruntime-gpu==1.31.0
    python -m tools.vendors.check_cuda_provider BUNDLE FOLDER --headers /usr/local/cuda/include

The provider's own code opens the graph, places every node and captures CUDA graphs. NVIDIA's libraries below it are
stand-ins (tests/runtime/cuda/stand_in_libraries.c, compiled here) whose kernels compute nothing. The check needs gcc,
nm and the headers of CUDA 13. The check thus covers capture and the order of calls, but no results and no times. With
ORT_ENABLE_ATTENTION_KERNEL_DEBUG_INFO=1, ONNX Runtime prints the attention kernels it uses.
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
"""Calls that NVIDIA documents as unsafe during stream capture, or that wait for the stream."""
_LAUNCHES = {"__cudaLaunchKernel", "cudaLaunchKernel"}
_COSTLY = _NOT_WHILE_CAPTURING | _LAUNCHES | {"cudaMemcpyAsync", "cudaMemsetAsync"}
_BUCKET = {"requests": 1, "branches": 2, "window": 32, "prefix": 64, "wanted": 16}


class CudaCode(IntEnum):
    """The only return code of the stand-ins."""

    cudaSuccess = 0  # noqa: N815


class CudaKind(IntEnum):
    """Copy kind of cudaMemcpyAsync."""

    cudaMemcpyDefault = 4  # noqa: N815


class StandInRuntime:
    """The memory functions of cuda.bindings.runtime that the engine uses, on the stand-in library."""

    cudaError_t = CudaCode  # noqa: N815
    cudaMemcpyKind = CudaKind  # noqa: N815
    cudaStreamNonBlocking = 1  # noqa: N815

    def __init__(self, library: Any) -> None:
        self._library = library
        library.stand_in_call.restype = ctypes.c_char_p

    def calls(self) -> list[str]:
        """Return the names of all calls so far, in order."""
        return [self._library.stand_in_call(number).decode() for number in range(self._library.stand_in_count())]

    def __getattr__(self, name: str) -> Callable[..., tuple[Any, ...]]:
        """Return a function that returns only a code."""
        return lambda *arguments: (CudaCode(getattr(self._library, name)(*map(_argument, arguments))),)

    def cudaMalloc(self, size: int) -> tuple[CudaCode, int | None]:  # noqa: N802
        """Call cudaMalloc like cuda-bindings."""
        return self._create("cudaMalloc", size)

    def cudaStreamCreateWithFlags(self, flags: int) -> tuple[CudaCode, int | None]:  # noqa: N802
        """Call cudaStreamCreateWithFlags like cuda-bindings."""
        return self._create("cudaStreamCreateWithFlags", flags)

    def _create(self, name: str, *arguments: Any) -> tuple[CudaCode, int | None]:
        handle = ctypes.c_void_p()
        code = getattr(self._library, name)(ctypes.byref(handle), *map(_argument, arguments))
        return CudaCode(code), handle.value


def main() -> int:
    """Print the findings. Return 1 if a call is not as the engine needs it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("bundle", type=Path)
    parser.add_argument("onnxruntime", type=Path, help="folder of onnxruntime-gpu")
    parser.add_argument("--headers", type=Path, default=Path("/usr/local/cuda/include"), help="[default: %(default)s]")
    arguments = parser.parse_args()
    cuda = stand_ins_for_provider(arguments.onnxruntime, arguments.headers)
    sys.path.insert(0, str(arguments.onnxruntime))

    from lopa.runtime.bundle import Bundle

    failures = list(failures_of_bundle(Bundle.open(arguments.bundle), cuda))
    for each in failures:
        print(f"FAILED: {each}")
    return 1 if failures else 0


def stand_ins_for_provider(folder: Path, headers: Path) -> StandInRuntime:
    """Load stand-ins for all NVIDIA libraries that the provider in `folder` needs, before the loader does."""
    provider = folder / "onnxruntime" / "capi" / "libonnxruntime_providers_cuda.so"
    listed = subprocess.run(["nm", "-D", "--undefined-only", provider], check=True, capture_output=True, text=True)
    symbols = defaultdict[str, list[str]](list, {"libcurand.so.10": [], "libcuda.so.1": ["cuTensorMapEncodeTiled"]})
    for name, library in re.findall(r" (\w+)@(libcu\w+\.so\.\d+)$", listed.stdout, re.MULTILINE):
        symbols[library].append(name)
    text = STAND_IN.read_text()
    written = {*re.findall(r"\b(cuda\w+)\(", text), *re.findall(r"^(?:GIVES|DOES)\((\w+)", text, re.MULTILINE)}
    loaded = {}
    with tempfile.TemporaryDirectory() as made:
        for library, names in symbols.items():
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
    """Run a shape bucket twice and another shape once, print the calls, and yield the errors."""
    import onnxruntime

    from lopa.runtime.accelerator.device_forward import GraphArrays
    from lopa.runtime.bundle.buckets import ShapeBucket
    from lopa.runtime.cuda.cuda_calls import CudaCalls
    from lopa.runtime.cuda.cuda_memory import CudaMemory
    from lopa.runtime.cuda.provider_session import ProviderSession

    bucket = ShapeBucket(**_BUCKET, seconds=1.0)
    other = ShapeBucket(**_BUCKET | {"branches": 3}, seconds=0.0)
    memory = CudaMemory(CudaCalls(cuda), 0)
    session = ProviderSession(bundle, "cuda:0", memory, None, with_graphs=True)
    print(f"onnxruntime-gpu {onnxruntime.__version__}: {bundle.path.name} opens for CUDA graphs")

    def bound(shape: ShapeBucket, *, captures: bool) -> Any:
        forms = GraphArrays(bundle.manifest)
        inputs, outputs = (
            {name: (form, memory.allocate(form.size)) for name, form in arrays.items()}
            for arrays in (forms.inputs(shape), forms.outputs(shape))
        )
        return session.bound(inputs, outputs, captures=captures)

    def calls_of_run(forward: Any, *, captures: bool = False) -> list[str]:
        before = len(cuda.calls())
        session.run(forward, captures=captures)
        return cuda.calls()[before:]

    graph, plain = bound(bucket, captures=True), bound(other, captures=False)
    first, again, without = calls_of_run(graph, captures=True), calls_of_run(graph), calls_of_run(plain)
    session.close()
    for title, calls in (("first forward of a graph", first), ("second forward", again), ("other shape", without)):
        print(f"{title}: {', '.join(f'{count} {name}' for name, count in Counter(calls).items())}")
    yield from failures_of_calls(first, again, without)


def failures_of_calls(first: Sequence[str], again: Sequence[str], without: Sequence[str]) -> Iterator[str]:
    """Yield the errors of a bucket's first and next forward, and of a shape without a bucket."""
    if first.count("cudaStreamBeginCapture") != 1 or first.count("cudaGraphLaunch") != 1:
        yield "the first forward of a bucket should capture one CUDA graph and launch it"
    else:
        captured = first[first.index("cudaStreamBeginCapture") : first.index("cudaStreamEndCapture")]
        if unsafe := _NOT_WHILE_CAPTURING & set(captured):
            yield f"unsafe calls during the capture of a CUDA graph: {', '.join(sorted(unsafe))}"
        if not _LAUNCHES & set(captured):
            yield "the CUDA graph has no kernels"
    if again.count("cudaGraphLaunch") != 1 or _COSTLY & set(again):
        yield "the next forward of a bucket should only launch its CUDA graph"
    if "cudaStreamBeginCapture" in without or "cudaStreamSynchronize" in without:
        yield "a shape without a bucket should run without capture and without waiting"


def _function(name: str) -> str:
    """Return a function definition in C. Create functions return a handle, others 0 for success."""
    if name.endswith(("Create", "Create_v2")):
        return f"int {name}(void **handle) {{ *handle = malloc(256); return 0; }}\n"
    if name == "__cudaRegisterFatBinary":
        return f"void *{name}(void *binary) {{ return malloc(64); }}\n"
    return f"long {name}(void) {{ return 0; }}\n"


def _argument(value: Any) -> Any:
    """Return the value as size_t, since addresses and sizes do not fit ctypes' int."""
    return ctypes.c_size_t(int(value))


if __name__ == "__main__":
    sys.exit(main())
