"""Real cubins for tests with the stand-in driver."""

import subprocess
import sys
from pathlib import Path

from tests.shared_folder import locked

COMPILER = "lopa.plugins.kernels.archive"
VARIANTS = (
    *("rms_norm.fp32.1024", "rms_norm.fp32.skip.1024", "split_rotary.fp32.64", "split_rotary.fp32.norm.64"),
    *("rms_norm.fp32.rounded.1024", "rms_norm.fp32.rounded.skip.1024", "rounded_swiglu.fp32"),
    *("round_rows.fp32", "scale_rows.fp32", "product_merge.fp32"),
    *(f"int4_product.fp32.{rows}" for rows in (32, 64, 128)),
    *(f"rounded_product.fp32.{kind}.{rows}" for kind in ("int8", "e4m3") for rows in (32, 64, 128)),
    *("branch_attention.fp32.sliding.256", "branch_attention.fp32.64", "attention_merge.fp32.64", "swiglu.fp32"),
    *("statistics_partials.fp32.8", "statistics_merge.8", "commit.8"),
    *("expert_tasks", "expert_sum.fp32"),
    *(
        f"expert_{name}"
        for name in ("gate_up.fp32", "gate_up_int4.fp32", "gate_up_rounded.int8", "gate_up_rounded.fp8")
    ),
    *(f"expert_{name}" for name in ("down.fp32", "down_int4.fp32", "down_rounded.int8", "down_rounded.fp8")),
)
"""Kernels of the tests' networks. ONNX Runtime's CPU provider computes these in float32."""


def compiled_sample(folder: Path) -> Path:
    """Compile VARIANTS for the compute capability 9.0 with Triton, once in `folder`. Return their archive."""
    path = folder / "sm_90.zip"
    program = (
        f"from pathlib import Path; from {COMPILER} import write_archive; "
        f"write_archive(Path({str(path)!r}), 'sm_90', 1, {VARIANTS!r})"
    )
    with locked(path):
        if not path.exists():
            subprocess.run([sys.executable, "-c", program], check=True, timeout=600)
    return path
