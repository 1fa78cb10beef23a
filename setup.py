"""The compiled libraries of the devices `cpu` and `cuda`. Everything else is in pyproject.toml, which cannot describe
them."""

import re
import sys
from pathlib import Path

from setuptools import Extension, setup
from setuptools.command.build_ext import build_ext
from setuptools.errors import BaseError, CCompilerError

_RUNTIME = Path("src/lopa/runtime")
_AVX2 = ["-mavx2", "-mfma", "-mf16c"]
_FLAGS = {
    "avx2.cpp": _AVX2,
    "avx_vnni.cpp": [*_AVX2, "-mavxvnni"],
    "avx512_vnni.cpp": [
        *_AVX2,
        *(f"-mavx512{part}" for part in ("f", "bw", "dq", "vl", "vnni")),
        "-mprefer-vector-width=512",
    ],
}
"""Flags of the sources for one instruction set. The library selects among them when it is loaded."""
_REASON = "_kernels.not-built"
"""File of the package that says why it has no kernels (lopa.runtime.cpu_kernels.kernel_library)."""


class BuildKernels(build_ext):
    """Build of the kernels with flags by source. If it fails, the package is complete without them and says why."""

    def build_extension(self, extension: Extension) -> None:
        """Build the kernels, or write the reason to standard error and to the package."""
        reason = Path(self.get_ext_fullpath(extension.name)).with_name(_REASON)
        reason.unlink(missing_ok=True)
        sources = extension.sources
        try:
            extension.extra_objects = [each for source in sources for each in self._objects(extension, source)]
            extension.sources = []
            super().build_extension(extension)
        except (BaseError, CCompilerError) as error:
            reason.parent.mkdir(parents=True, exist_ok=True)
            message = re.sub(r"\['([^']+)'.*\]", r"\1", str(error)).rstrip(".")  # a command without its arguments
            reason.write_text(f"{message}\n", encoding="utf-8")
            device = extension.name.split(".")[-2].removesuffix("_kernels")
            print(f"warning: built without the kernels of the device {device}: {message}", file=sys.stderr)
        finally:
            extension.sources = sources

    def _objects(self, extension: Extension, source: str) -> list[str]:
        """Compile one source."""
        flags = [*extension.extra_compile_args, *_FLAGS.get(Path(source).name, [])]
        objects: list[str] = self.compiler.compile([source], self.build_temp, extra_postargs=flags)
        return objects


def _library(name: str, package: str, compile_args: list[str], libraries: list[str]) -> Extension:
    """Return the library `name` of a package of the runtime, from all its C++ sources."""
    folder = _RUNTIME / package
    return Extension(
        f"lopa.runtime.{package}.{name}",
        sources=[str(path) for path in sorted(folder.glob("*.cpp"))],
        depends=[str(path) for path in sorted(_RUNTIME.glob("*_kernels/*.[ch]*"))],
        language="c++",
        # GCC 12 warns of its own intrinsics for AVX-512 (its bug 105593).
        extra_compile_args=[
            "-std=c++17",
            *compile_args,
            "-g0",
            "-fvisibility=hidden",
            "-Wno-uninitialized",
            "-Wno-maybe-uninitialized",
        ],
        libraries=libraries,
        py_limited_api=True,
        optional=True,  # without a C++ compiler or on another processor, ONNX Runtime's own kernels are used
    )


setup(
    cmdclass={"build_ext": BuildKernels},
    ext_modules=[
        _library("_kernels", "cpu_kernels", ["-O3"], []),
        *([_library("_operators", "cuda_kernels", ["-O2"], ["dl"])] if sys.platform == "linux" else []),
    ],
    options={"bdist_wheel": {"py_limited_api": "cp311"}},
)
