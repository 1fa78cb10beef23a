"""Polygraphy as a process, on saved folders."""

import subprocess
import sys
from pathlib import Path

POLYGRAPHY = (sys.executable, "-c", "import sys; from polygraphy.tools import main; sys.exit(main())")


def replayed(graph: Path, folder: Path, *, rule: tuple[str, ...] = ()) -> subprocess.CompletedProcess[str]:
    """Run `graph` on ONNX Runtime's CPU over the forwards in `folder`; `rule` replaces the folder's comparison."""
    return subprocess.run(
        [
            *(*POLYGRAPHY, "run", str(graph), "--onnxrt"),
            *("--load-inputs", str(folder / "inputs.json"), "--load-outputs", str(folder / "outputs.json")),
            *(rule or ("--compare-func-script", str(folder / "compare.py"))),
        ],
        capture_output=True,
        text=True,
        check=False,
    )
