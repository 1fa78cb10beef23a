"""Folder with everything that a machine with ATC needs for a job: graph, weights, commands and instructions.

It has the same layout as the work folder in build.py, so the commands are identical. This module runs nothing.
"""

import shutil
from pathlib import Path

import msgspec

from lopa.export.ascend.call import CACHE_FOLDER, ENGINE_FOLDER, MODEL_FOLDER
from lopa.export.ascend.job import INT8_GRAPH, AscendJob
from lopa.export.staging import Product, staged_folder
from lopa.runtime.bundle import sha256_of_file
from lopa.runtime.errors import BadInputError
from lopa.runtime.files.untrusted_input import bytes_from_file, value_from_json

COMMANDS_NAME = "commands.json"
_FOLDER = Product("build folder", COMMANDS_NAME)
_OVERHEAD_BYTES = 1 << 20
_RUN = '''\
"""Run the commands of commands.json one after another. Needs Python 3 only, and atc on PATH."""

import json
import pathlib
import shutil
import subprocess
import sys

if shutil.which("atc") is None:
    sys.exit("atc is not on PATH: source set_env.sh of the toolkit first")
here = pathlib.Path(__file__).resolve().parent
for number, command in enumerate(json.loads((here / "commands.json").read_text())["commands"], 1):
    print(f"command {number}: atc takes minutes per shape bucket", flush=True)
    code = subprocess.run(command, cwd=here).returncode
    if code:
        sys.exit(f"atc ended with exit code {code}")
'''
_README = """\
Compiles an engine for {soc} with ATC of Ascend's CANN: {buckets} in {commands}.

1. Install CANN's toolkit and the operator package of {soc}, and source set_env.sh.
{int8}{run}. Run: python3 run.py
   It runs the argument lists of commands.json in this folder. In a shell, quote the arguments: an unquoted semicolon
   ends the command (ATC's E10054). ATC takes minutes per shape bucket. The largest one determines its memory.
{back}. Copy this folder back and run, with the same options and the same bundle as for this folder:
   lopa-export ascend BUNDLE --soc-version {soc} ... --built THIS_FOLDER

model/         the graph and its weights
commands.json  a list of arguments for each OM; paths are relative to this folder
shape_buckets.json  the shape buckets, each with the numbers that replace every -1 of the inputs
engine/        output of the commands
cache/         compiled operators, for later runs
"""
_INT8_STEP = """\
2. Quantize model/{graph} with AMCT (amct_onnx, of CANN) to model/{int8}: the "deploy" graph with unchanged inputs and
   outputs, and its weights in the same folder. AMCT needs inputs for calibration; this project has no recorded ones and
   has not run AMCT. In the last step add: --int8-graph THIS_FOLDER/model/{int8}
"""


def build_folder_from_job(job: AscendJob, destination: Path) -> None:
    """Write the folder, replacing an existing one. Weights are copied.

    Raises BadInputError if `destination` exists and is not a build folder, or cannot be written.
    """
    files = [job.graph, *(job.graph.parent / name for name in job.data)]
    needed = sum(path.stat().st_size for path in files) + _OVERHEAD_BYTES
    with staged_folder(destination, overwrite=True, needed_bytes=needed, product=_FOLDER) as folder:
        for name in (MODEL_FOLDER, ENGINE_FOLDER, CACHE_FOLDER):
            (folder / name).mkdir()
        for path in files:
            target = folder / MODEL_FOLDER / path.relative_to(job.graph.parent)
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(
                path, target
            )  # ONNX rejects files with several hard links, so the weights cannot be hard links to the bundle's
        _write_json(folder / COMMANDS_NAME, {"commands": job.commands})
        _write_json(
            folder / "shape_buckets.json",
            {
                "inputs": job.bucketed.inputs,
                "buckets": [
                    {"bucket": bucket, "dims": numbers, "model": job.call_of_bucket(index).name}
                    for index, (bucket, numbers) in enumerate(zip(job.buckets, job.bucketed.tuples, strict=True))
                ],
            },
        )
        (folder / "run.py").write_text(_RUN, encoding="utf-8")
        (folder / "README.txt").write_text(_readme(job), encoding="utf-8")


def check_build_folder(source: Path, job: AscendJob) -> None:
    """Raise BadInputError unless `source` has the commands, the graph and the weights of `job`."""
    path, expected, remedy = source / COMMANDS_NAME, "a folder written by --dry-run", "check the path"
    text = bytes_from_file(path, expected=expected, remedy=remedy)
    found = value_from_json(text, dict[str, list[list[str]]], source=str(path), expected=expected, remedy=remedy)
    again = "run --dry-run again with the current options, or pass the options of that folder"
    if found.get("commands") != job.commands:
        raise BadInputError(
            f"{source / COMMANDS_NAME} has other commands than these options and this bundle require",
            expected="the same commands",
            remedy=again,
        )
    names = (job.calls[0].graph, *job.data)
    for name, digest in zip(names, (job.graph_sha256, *job.data_sha256), strict=True):
        path = source / MODEL_FOLDER / name
        if not path.is_file() or sha256_of_file(path) != digest:
            raise BadInputError(f"{path} differs from the current input", expected=f"sha256 {digest}", remedy=again)


def _readme(job: AscendJob) -> str:
    waits = job.calls[0].graph == INT8_GRAPH and job.graph.name != INT8_GRAPH
    buckets, commands = len(job.buckets), len(job.calls)
    return _README.format(
        soc=job.soc_version,
        buckets=f"{buckets} shape bucket{'s' * (buckets > 1)}",
        commands=f"{commands} command{'s' * (commands > 1)}",
        int8=_INT8_STEP.format(graph=job.graph.name, int8=INT8_GRAPH) if waits else "",
        run=3 if waits else 2,
        back=4 if waits else 3,
    )


def _write_json(path: Path, value: object) -> None:
    path.write_bytes(msgspec.json.format(msgspec.json.encode(value), indent=2) + b"\n")
