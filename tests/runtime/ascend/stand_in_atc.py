"""A stand-in for Ascend's ATC that reads arguments and graph as documented, and writes a description as its "OM".

It is not vendor software, and nothing in it is recorded. Banners, exit codes and rules are from documentation and
published source; the texts after the codes are not. It does not use the rules of lopa.export, whose tests are in
tests/export/ascend, and supports the options listed here only. Environment variables make it fail:

STAND_IN_ATC_FAIL: text to print before failing.
STAND_IN_ATC_SLEEP: seconds to sleep, together with a child process.
STAND_IN_ATC_NO_OM: succeed without writing an OM.
STAND_IN_ATC_CALLS: file that gets the arguments of every run as a line of JSON.
"""

import hashlib
import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import NoReturn

import onnx
import onnx.external_data_helper
import onnx.helper
from tests.runtime.ascend.stand_in_om import SUFFIX, OmInput, OmOutput, StandInModel, write_om

START = "ATC start working now, please wait for a moment."
SUCCESS = "ATC run success, welcome to the next use."
FAILURE = "ATC run failed, Please check the detail log, Try 'atc --help' for more information"
FAILED = 255
KNOWN = (
    *("mode", "framework", "model", "output", "soc_version", "input_format", "input_shape", "dynamic_dims"),
    *("precision_mode_v2", "external_weight", "op_compiler_cache_mode", "op_compiler_cache_dir", "op_debug_level"),
    "log",
)
"""Options with the values that tests/runtime/ascend/arguments.json shows."""
QUANTIZED = ("AscendQuant", "AscendDequant")
REQUIRED = ("framework", "model", "output", "soc_version")


class RejectedError(Exception):
    """Rejected arguments or graph, with a code and a text."""


def reject(code: str, text: str) -> NoReturn:
    raise RejectedError(f"{code}: {text}")


def options_of_arguments(arguments: list[str]) -> dict[str, str]:
    options = {}
    for argument in arguments:
        name, equals, value = argument.removeprefix("--").partition("=")
        if not argument.startswith("--") or not equals or name not in KNOWN:
            reject("E10054", f"the argument {argument!r} is unknown")
        if name in options:
            reject("E10001", f"--{name} is given twice")
        options[name] = value
    for name in REQUIRED:
        if not options.get(name):
            reject("E10054", f"The required parameter [--{name}] for ATC is empty")
    return options


def check_inputs(model: onnx.ModelProto, shapes: dict[str, list[int]]) -> list[OmInput]:
    inputs = []
    for value in model.graph.input:
        axes = value.type.tensor_type.shape.dim
        own = [axis.dim_value if axis.HasField("dim_value") else -1 for axis in axes]
        dims = shapes.pop(value.name, own)
        fits = len(dims) == len(own) and all(mine in (-1, dim) for mine, dim in zip(own, dims, strict=True))
        if not fits or any(dim < 1 and dim != -1 for dim in dims):
            reject("E10001", f"--input_shape gives {value.name} the shape {dims}, the model {own}")
        inputs.append(OmInput(name=value.name, dims=dims, dtype=dtype_of(value)))
    if shapes:
        reject("E10016", f"--input_shape names {sorted(shapes)}, which the model does not have")
    return inputs


def dtype_of(value: onnx.ValueInfoProto) -> str:
    return str(onnx.helper.tensor_dtype_to_np_dtype(value.type.tensor_type.elem_type).name)


def model_of_options(options: dict[str, str], arguments: list[str]) -> None:
    """Check the options and the graph, and write the OM and its weights."""
    path = Path(options["model"])
    model = onnx.load(path, load_external_data=False)
    pairs = (part.split(":") for part in options.get("input_shape", "").split(";") if part)
    inputs = check_inputs(model, {name: [int(dim) for dim in dims.split(",") if dim] for name, dims in pairs})
    open_axes = sum(dim == -1 for each in inputs for dim in each.dims)
    texts = [part for part in options.get("dynamic_dims", "").split(";") if part]
    buckets = [[int(number) for number in part.split(",")] for part in texts]
    if {len(bucket) for bucket in buckets} - {open_axes} or bool(buckets) != bool(open_axes):
        reject("E10045", f"--dynamic_dims has {buckets} for {open_axes} times -1")
    output = Path(options["output"])
    Path("fusion_result.json").write_text("[]")
    if "op_compiler_cache_dir" in options:
        (Path(options["op_compiler_cache_dir"]) / "kernel_cache").mkdir(parents=True, exist_ok=True)
    for node in model.graph.node:
        if node.op_type in QUANTIZED:  # the stand-in acl computes in floats
            node.op_type = "Identity"
            del node.attribute[:]
    weights = write_weights(model, path.parent, output.parent)
    if os.environ.get("STAND_IN_ATC_NO_OM"):
        return
    write_om(
        output.with_name(output.name + SUFFIX),
        StandInModel(
            atc_cmdline=["atc", *arguments],
            soc_version=options["soc_version"],
            inputs=inputs,
            outputs=[OmOutput(name=value.name, dtype=dtype_of(value)) for value in model.graph.output],
            buckets=buckets,
            graph=model.SerializeToString(),
            weights=weights,
        ),
    )


def write_weights(model: onnx.ModelProto, source: Path, target: Path) -> list[str]:
    """Write weight/weight_<hash> for every external tensor, and make `model` refer to it."""
    names = []
    for tensor in model.graph.initializer:
        if not onnx.external_data_helper.uses_external_data(tensor):
            continue
        info = onnx.external_data_helper.ExternalDataInfo(tensor)
        with (source / info.location).open("rb") as file:
            file.seek(info.offset or 0)
            data = file.read(info.length) if info.length else file.read()
        name = f"weight/weight_{hashlib.sha256(data).hexdigest()[:20]}"
        (target / "weight").mkdir(exist_ok=True)
        (target / name).write_bytes(data)
        del tensor.external_data[:]
        for key, value in (("location", name), ("offset", "0"), ("length", str(len(data)))):
            tensor.external_data.add(key=key, value=value)
        names.append(name)
    return list(dict.fromkeys(names))


def write_log(text: str) -> None:
    base = os.environ.get("ASCEND_PROCESS_LOG_PATH")
    folder = (Path(base) if base else Path.home() / "ascend" / "log") / "debug" / "plog"
    folder.mkdir(parents=True, exist_ok=True)
    (folder / f"plog-{os.getpid()}.log").write_text(text + "\n")


def main(arguments: list[str]) -> int:
    if calls := os.environ.get("STAND_IN_ATC_CALLS"):
        with Path(calls).open("a") as file:
            file.write(json.dumps(["atc", *arguments]) + "\n")
    print(START, flush=True)
    try:
        if seconds := os.environ.get("STAND_IN_ATC_SLEEP"):
            with subprocess.Popen(["sleep", seconds]) as child:
                Path("children.txt").write_text(f"{os.getpid()} {child.pid}")
                time.sleep(float(seconds))
        if text := os.environ.get("STAND_IN_ATC_FAIL"):
            raise RejectedError(text)
        model_of_options(options_of_arguments(arguments), arguments)
    except RejectedError as error:
        print(FAILURE)
        print(error)
        write_log(f"[ERROR] GE: {error}")
        return FAILED
    print(SUCCESS)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
