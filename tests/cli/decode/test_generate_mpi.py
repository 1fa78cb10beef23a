"""lopa-export generate --device mpi: with mpirun, without it, and on unsuitable machines."""

import json
import subprocess
import sys
from pathlib import Path

from tests.cli.command import lopa_export
from tests.runtime.mpi.mpi_runs import job, needs_mpi

from lopa import tiny
from lopa.runtime.install_hint import pip_install

PROMPT = json.loads(tiny.EVAL.read_text(encoding="utf-8").splitlines()[1])["prompt"]
GENERATE = ["-m", "lopa.cli.main", "generate"]


@needs_mpi
def test_the_text_is_that_of_one_process(tiny_bundle: Path) -> None:
    alone = lopa_export("generate", tiny_bundle, PROMPT, "--branches", 4)
    result = job((2, [*GENERATE, tiny_bundle, PROMPT, "--branches", 4, "--device", "mpi"]))
    assert (result.returncode, result.stdout) == (0, alone.stdout), result.stderr
    assert result.stderr.count("tokens per forward") == 1, "rank 0 alone reports"


@needs_mpi
def test_bundles_that_differ_are_rejected(tiny_bundle: Path, tiny_bundle_logits: Path) -> None:
    result = job(
        (2, [*GENERATE, tiny_bundle, PROMPT, "--device", "mpi"]),
        (1, [*GENERATE, tiny_bundle_logits, PROMPT, "--device", "mpi"]),
    )
    assert (result.returncode, result.stdout) == (2, ""), result.stderr
    assert "rank 2 of the MPI job has another bundle than rank 0" in result.stderr
    assert "copy the bundle of rank 0" in result.stderr


@needs_mpi
def test_a_bundle_missing_on_one_machine_ends_the_job(tiny_bundle: Path, tmp_path: Path) -> None:
    lacking, paths = 1, [tiny_bundle, tmp_path / "nothing"]
    result = job(*((1, [*GENERATE, path, PROMPT, "--device", "mpi"]) for path in paths))
    assert (result.returncode, result.stdout) == (2, ""), result.stderr
    assert f"error: rank {lacking} of 2 on " in result.stderr
    assert f"{paths[lacking]} does not exist" in result.stderr


@needs_mpi
def test_mpi_devices_are_rejected_by_other_commands(tiny_bundle: Path) -> None:
    result = job((2, ["-m", "lopa.cli.main", "bench", "costs", tiny_bundle, "--device", "mpi"]))
    assert result.returncode == 2
    assert "rank 1 opened a session on device 'mpi'" in result.stderr


@needs_mpi
def test_without_mpirun_the_error_names_the_command(tiny_bundle: Path) -> None:
    result = _generate([], tiny_bundle)
    assert (result.returncode, result.stdout) == (2, ""), result.stderr
    assert "in a job of one rank" in result.stderr
    assert "mpirun -n 2 lopa-export generate" in result.stderr


def test_without_mpi4py_the_error_names_the_extra(tiny_bundle: Path) -> None:
    refuse = "import sys; sys.modules['mpi4py'] = None; from lopa.cli.main import main; main(sys.argv[1:])"
    result = _generate(["-c", refuse, "generate"], tiny_bundle)
    assert (result.returncode, result.stdout) == (3, "")
    assert pip_install("mpi", also=("mpich",)) in result.stderr
    assert "Traceback" not in result.stderr


def _generate(start: list[str], bundle: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *(start or GENERATE), bundle, PROMPT, "--device", "mpi"],
        capture_output=True,
        text=True,
        check=False,
    )
