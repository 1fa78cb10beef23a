"""Polygraphy in this process, on saved folders."""

import sys
import warnings
from contextlib import redirect_stdout
from io import StringIO
from pathlib import Path
from subprocess import CompletedProcess

import pytest
from polygraphy.tools import main

POLYGRAPHY = (sys.executable, "-c", "import sys; from polygraphy.tools import main; sys.exit(main())")


def replayed(graph: Path, folder: Path, *, rule: tuple[str, ...] = ()) -> CompletedProcess[str]:
    """Run `graph` on ONNX Runtime's CPU over the forwards in `folder`; `rule` replaces the folder's comparison."""
    command = [
        *("polygraphy", "run", str(graph), "--onnxrt"),
        *("--load-inputs", str(folder / "inputs.json"), "--load-outputs", str(folder / "outputs.json")),
        *(rule or ("--compare-func-script", str(folder / "compare.py"))),
    ]
    with pytest.MonkeyPatch.context() as patched, redirect_stdout(StringIO()) as printed, warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of Polygraphy's own calls
        patched.setattr(sys, "argv", command)
        code = main()
    return CompletedProcess(command, code, printed.getvalue())
