"""The compiled kernels of the device `cpu`. Everything else is in pyproject.toml, which has no stable form for them."""

from pathlib import Path

from setuptools import Extension, setup

_KERNELS = Path("src/lopa/runtime/cpu_kernels")

setup(
    ext_modules=[
        Extension(
            "lopa.runtime.cpu_kernels._kernels",
            sources=[str(path) for path in sorted(_KERNELS.glob("*.cpp"))],
            depends=[str(path) for path in sorted(_KERNELS.glob("*.h"))],
            language="c++",
            extra_compile_args=["-std=c++17", "-O3", "-g0", "-fvisibility=hidden"],
            py_limited_api=True,
            optional=True,  # without a C++ compiler or on another processor, ONNX Runtime's own kernels are used
        )
    ],
    options={"bdist_wheel": {"py_limited_api": "cp311"}},
)
