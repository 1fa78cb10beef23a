"""Programs of the GPU report that need no large checkpoint: kernels, bundles in every data type, recorded decodes."""

import os
import subprocess
import sys
import time
from pathlib import Path

from lopa.bench.gpu.results import ProgramResult

_PROJECT = Path(__file__).resolve().parents[2]
_TINY = _PROJECT / "src" / "lopa" / "tiny"
_SPARSE = _PROJECT / "tests" / "reference" / "moe" / "llada2"
_CLI = ("-m", "lopa.cli.main")
_PYTEST = ("-m", "pytest", "-q", "-p", "no:cacheprovider", "-W", "default", "-m")
_OPTIONS = {"fp32": (), "fp16": ("--dtype", "fp16"), "bf16": ("--dtype", "bf16")} | {
    name: ("--quantize", name) for name in ("int8", "int4", "fp8")
}
"""Options of an export by data type."""
_SECONDS = 180
"""Time limit of a program."""
_LINE_LENGTH = 120

Program = tuple[str, tuple[str, ...]]
"""Name, and arguments of Python."""


def programs_for_device(work: Path, device: str) -> list[list[Program]]:
    """Return the programs in groups, which run one after another. Those of a group run side by side.

    One program opens the device before the others, because the first may compile the kernels.
    """
    base = ("--checkpoint", str(_TINY / "base"), "--lora", str(_TINY / "d2f_lora"))
    sources: dict[str, tuple[str, tuple[str, ...]]] = {dtype: (dtype, base) for dtype in _OPTIONS}
    if device != "cpu":
        sources |= {f"sparse-{dtype}": (dtype, ("--checkpoint", str(_SPARSE))) for dtype in _OPTIONS}
    exports = [
        (f"export {name}", (*_CLI, "onnx", *source[1:], *_OPTIONS[dtype], "-o", f"{work / name}"))
        for name, (dtype, source) in sources.items()
    ]
    first, *others = (
        (f"verify {name}", (*_CLI, "verify", f"{work / name}", *source, "--device", device))
        for name, (dtype, source) in sources.items()
        if (dtype, device) != ("bf16", "cpu")  # which ONNX Runtime does not compute there
    )
    amount = "not slow" if device == "cpu" else "slow"  # the first decodes of each recording, or all
    decodes = ("recorded decodes", (*_PYTEST, amount, "tests/conformance/test_conformance.py"))
    if device == "cpu":
        return [exports, [first], [decodes, *others]]
    kernels = ("kernels natively", (*_PYTEST, "cuda", "tests/plugins"))
    some = "llada2-v20_b16_t09 or sdar_moe-b4 or llada_moe-fast"
    sparse = ("sparse decodes", (*_PYTEST, "", "tests/conformance/test_family_conformance.py", "-k", some))
    products = ("product times", ("-m", "tools.gpu.product_times"))
    experts = ("times of experts", ("-m", "tools.gpu.experts", "--device", device))
    return [[*exports, kernels], [first], [decodes, sparse, *others], [products], [experts]]  # times: alone on the GPU


def run_program(program: Program, device: str, logs: Path) -> ProgramResult:
    """Run a program within the time limit, and write its output to a file of `logs`."""
    (name, arguments), began = program, time.perf_counter()
    paths = (str(_PROJECT / "src"), str(_PROJECT), os.environ.get("PYTHONPATH", ""))
    done = subprocess.run(
        ["timeout", "-k", "5", str(_SECONDS), sys.executable, *arguments],  # also stops the program's own processes
        cwd=_PROJECT,
        env={**os.environ, "LOPA_TEST_DEVICE": device, "PYTHONPATH": os.pathsep.join(filter(None, paths))},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        errors="replace",
        check=False,
    )
    (logs / f"{name.replace(' ', '-')}.log").write_text(done.stdout)
    last = done.stdout.rstrip().rpartition("\n")[2]
    # pytest also ends with 0 if it skips every test.
    passed = done.returncode == 0 and (" passed" in last or "pytest" not in arguments)
    return ProgramResult(name, done.returncode, time.perf_counter() - began, last[:_LINE_LENGTH], passed)
