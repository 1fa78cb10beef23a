"""A stand-in for Ascend's ATC that checks arguments and graph as documented, and writes a description as its "OM".

It is not vendor software, and nothing in it is recorded. Banners, exit codes and rules are from documentation and
published source; the texts after the codes are not. It does not use the rules of lopa.export, and supports the options
listed here only. Environment variables make it fail:

STAND_IN_ATC_FAIL: text to print before failing.
STAND_IN_ATC_SLEEP: seconds to sleep, together with a child process.
STAND_IN_ATC_SUFFIX: suffix of the OM's name, e.g. _linux_x86_64.
STAND_IN_ATC_NO_OM: succeed without writing an OM.
STAND_IN_ATC_CALLS: file that gets the arguments of every run as a line of JSON.
"""

import hashlib
import json
import os
import subprocess
import sys
import time
from itertools import pairwise
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
KNOWN = {
    "mode": {"0"},
    "framework": {"5"},
    "model": None,
    "output": None,
    "soc_version": {
        *("Ascend910B1", "Ascend910B2", "Ascend910B2C", "Ascend910B3", "Ascend910B4", "Ascend910B4-1"),
        *(f"Ascend910_{number}" for number in (9362, 9363, 9372, 9381, 9382, 9391, 9392)),
        *("Ascend310P1", "Ascend310P3", "Ascend310P5", "Ascend310P7"),
        *("Ascend950PR_9579", "Ascend950PR_9589", "Ascend950PR_9599"),
    },
    "input_format": {"ND", "NCHW", "NHWC"},
    "input_shape": None,
    "dynamic_dims": None,
    "precision_mode_v2": {"fp16", "origin", "cube_fp16in_fp32out", "mixed_float16", "mixed_bfloat16"},
    "external_weight": {"0", "1"},
    "op_compiler_cache_mode": {"enable", "disable", "force"},
    "op_compiler_cache_dir": None,
    "op_debug_level": {"0", "1", "2", "3", "4"},
    "log": {"null", "debug", "info", "warning", "error"},
}
REQUIRED = ("framework", "model", "output", "soc_version")
OPERATORS = Path(__file__).parents[3] / "src" / "lopa" / "export" / "graph" / "ascend_operators.json"
QUANTIZED = ("AscendQuant", "AscendDequant", "AscendAntiQuant")


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
        allowed = KNOWN[name]
        if allowed is not None and value not in allowed:
            reject("E10001", f"Value [{value}] for parameter [--{name}] is invalid")
        options[name] = value
    for name in REQUIRED:
        if not options.get(name):
            reject("E10054", f"The required parameter [--{name}] for ATC is empty")
    return options


def shapes_of_text(text: str) -> dict[str, list[int]]:
    shapes: dict[str, list[int]] = {}
    for part in text.split(";") if text else []:
        if "~" in part:
            reject("E10046", f"a range in {part!r} together with dims profiles")
        name, colon, dims = part.partition(":")
        if not colon or name in shapes:
            reject("E10001", f"Value [{text}] for parameter [--input_shape] is invalid")
        shapes[name] = [int(dim) for dim in dims.split(",")] if dims else []
    return shapes


def buckets_of_text(text: str, limit: int) -> list[list[int]]:
    if not all(part and all(number.isdecimal() for number in part.split(",")) for part in text.split(";")):
        reject("E10038", f"Value [{text}] for parameter [--dynamic_dims] has an invalid number")
    buckets = [[int(number) for number in part.split(",")] for part in text.split(";")]
    if len(buckets) < 2:
        reject("E10035", f"--dynamic_dims has {len(buckets)} bucket, fewer than 2")
    if len(buckets) > limit:
        reject("E10036", f"--dynamic_dims has {len(buckets)} buckets, more than {limit}")
    if len({len(bucket) for bucket in buckets}) > 1:
        reject("E10037", "--dynamic_dims has buckets of different lengths")
    if any(first == second for first, second in pairwise(sorted(buckets))):
        reject("E10039", "--dynamic_dims has a bucket twice")
    return buckets


def check_graph(model: onnx.ModelProto) -> None:
    if len(model.opset_import) != 1:
        reject(
            "E16005", f"The model has [{len(model.opset_import)}] [--domain_version] fields, but only one is allowed"
        )
    registered = json.loads(OPERATORS.read_bytes())["operators"]
    opset = model.opset_import[0].version
    for node in model.graph.node:
        ranges = registered.get(f"{node.domain or 'ai.onnx'}::{node.op_type}", "")
        pairs = [part.split("-") for part in ranges.split(",") if part]
        if not any(int(pair[0]) <= opset <= int(pair[-1]) for pair in pairs):
            name = f"{node.domain or 'ai.onnx'}::{opset}::{node.op_type}"
            reject("E16002", f"Optype [{name}] of ops kernel [{node.name}] is unsupported")


def check_inputs(model: onnx.ModelProto, shapes: dict[str, list[int]]) -> list[OmInput]:
    values = {value.name: value for value in model.graph.input}
    if set(shapes) - set(values):
        reject("E10016", f"--input_shape names {sorted(set(shapes) - set(values))}, which the model does not have")
    inputs = []
    for name, value in values.items():
        axes = value.type.tensor_type.shape.dim
        own = [axis.dim_value if axis.HasField("dim_value") else -1 for axis in axes]
        dims = shapes.get(name, own)
        fits = len(dims) == len(own) and all(mine in (-1, dim) for mine, dim in zip(own, dims, strict=True))
        if not fits or any(dim < 1 and dim != -1 for dim in dims):
            reject("E10001", f"--input_shape gives {name} the shape {dims}, the model {own}")
        inputs.append(OmInput(name=name, dims=dims, dtype=dtype_of(value)))
    return inputs


def dtype_of(value: onnx.ValueInfoProto) -> str:
    return str(onnx.helper.tensor_dtype_to_np_dtype(value.type.tensor_type.elem_type).name)


def model_of_options(options: dict[str, str], arguments: list[str]) -> None:
    """Check the options and the graph, and write the OM and its weights."""
    soc, precision = options["soc_version"], options.get("precision_mode_v2", "fp16")
    if soc.startswith("Ascend310P") and precision == "mixed_bfloat16":
        reject("E10001", f"[--precision_mode_v2] mixed_bfloat16 is not supported on {soc}")
    path = Path(options["model"])
    if not path.is_file():
        reject("E10005", f"Value [{path}] for parameter [--model] does not exist")
    model = onnx.load(path, load_external_data=False)
    check_graph(model)
    inputs = check_inputs(model, shapes_of_text(options.get("input_shape", "")))
    open_axes = sum(dim == -1 for each in inputs for dim in each.dims)
    buckets: list[list[int]] = []
    if "dynamic_dims" in options:
        buckets = buckets_of_text(options["dynamic_dims"], 256 if soc.startswith("Ascend950") else 100)
        if not open_axes:
            reject("E10040", "--dynamic_dims needs -1 in --input_shape")
        if len(buckets[0]) != open_axes:
            reject("E10045", f"--dynamic_dims has {len(buckets[0])} numbers for {open_axes} times -1")
    elif open_axes:
        reject("E10001", "an input has the size -1, and there is no --dynamic_dims")
    if any(node.op_type in QUANTIZED for node in model.graph.node):
        if buckets:
            reject("E10001", "a quantized model takes no dynamic shapes")
        if precision == "origin":
            reject("E10001", "a quantized model takes no high precision")
    output = Path(options["output"])
    if not output.parent.is_dir():
        reject("E10005", f"the folder of [--output] {output} does not exist")
    Path("fusion_result.json").write_text("[]")
    if "op_compiler_cache_dir" in options:
        (Path(options["op_compiler_cache_dir"]) / "kernel_cache").mkdir(parents=True, exist_ok=True)
    weights = write_weights(model, path.parent, output.parent)
    if os.environ.get("STAND_IN_ATC_NO_OM"):
        return
    write_om(
        output.with_name(output.name + os.environ.get("STAND_IN_ATC_SUFFIX", "") + SUFFIX),
        StandInModel(
            atc_cmdline=["atc", *arguments],
            soc_version=soc,
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
    if "--help" in arguments:
        print("usage: atc <args>")
        return 0
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
