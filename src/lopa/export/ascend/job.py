"""Decisions before a call of ATC: the graph, its shapes and the commands.

build.py runs a job on this machine, build_folder.py writes it for another one.
"""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

import msgspec
import onnx
import onnx.external_data_helper

from lopa.export.ascend.call import AtcCall, arguments_from_call, calls_from_inputs
from lopa.export.ascend.inputs import BucketedInputs, bucketed_inputs, engine_outputs
from lopa.export.ascend.rules import check_call, check_graph, soc_from_name
from lopa.runtime.ascend.ascend_manifest import ENGINE_SCHEMA, EngineOutput, Precision
from lopa.runtime.bundle import Bundle, sha256_of_file
from lopa.runtime.bundle.buckets import ShapeBucket
from lopa.runtime.contract import CONTRACT_VERSION
from lopa.runtime.errors import BadInputError

INT8_GRAPH = "portable_int8.onnx"
"""File name in a build folder of a quantized graph that does not exist yet."""


@dataclass(frozen=True)
class AscendRequest:
    """Options of the user."""

    soc_version: str
    buckets: Sequence[ShapeBucket]
    precision: Precision | None
    """Precision, or None for the default: origin, or fp16 for an int8 graph, which does not support origin."""
    int8: bool
    int8_graph: Path | None
    """Graph quantized by AMCT, or None without int8 or if the graph does not exist yet."""


@dataclass(frozen=True)
class AscendJob:
    """Everything that ATC compiles."""

    graph: Path
    """Graph file. For an int8 graph that does not exist yet, the graph to quantize."""
    data: tuple[str, ...]
    """Weights files, relative to the graph's folder."""
    soc_version: str
    precision: Precision
    int8: bool
    buckets: tuple[ShapeBucket, ...]
    bucketed: BucketedInputs
    outputs: tuple[EngineOutput, ...]
    calls: tuple[AtcCall, ...]
    graph_sha256: str
    data_sha256: tuple[str, ...]
    weights_sha256: str
    """Digest of the bundle's weights."""

    @property
    def dynamic(self) -> bool:
        """True if one OM serves all shape buckets."""
        return bool(self.calls[0].tuples)

    @property
    def commands(self) -> list[list[str]]:
        """One list of arguments for each OM."""
        return [arguments_from_call(call) for call in self.calls]

    def call_of_bucket(self, index: int) -> AtcCall:
        """Return the call whose OM serves shape bucket number `index`."""
        return self.calls[0 if self.dynamic else self.bucketed.different.index(self.bucketed.tuples[index])]

    def cache_key(self, cann_version: str | None) -> str:
        """Return the SHA-256 of all inputs of the build."""
        parts = {
            "schema": ENGINE_SCHEMA,
            "contract": CONTRACT_VERSION,
            "commands": self.commands,
            "buckets": self.buckets,
            "int8": self.int8,
            "graph": self.graph_sha256,
            "data": dict(zip(self.data, self.data_sha256, strict=True)),
            "weights": self.weights_sha256,
            "cann": cann_version,
        }
        return hashlib.sha256(msgspec.json.encode(parts, order="sorted")).hexdigest()


def job_from_bundle(bundle: Bundle, request: AscendRequest) -> AscendJob:
    """Return a job for the user's options after checking it.

    Raises BadInputError for an unknown chip, a bundle without a portable graph, and anything that ATC would reject.
    """
    soc = soc_from_name(request.soc_version)
    check_float(bundle)
    portable = bundle.with_dialect("portable")
    portable_model = _model_from_file(portable.graph)
    graph = portable.graph if request.int8_graph is None else request.int8_graph
    model = portable_model if request.int8_graph is None else _model_from_file(graph)
    check_graph(model, int8=request.int8_graph is not None)
    _check_same_values(model, portable_model, graph)
    precision = request.precision or ("fp16" if request.int8 else "origin")
    bucketed = bucketed_inputs(portable_model, request.buckets)
    waits = request.int8 and request.int8_graph is None
    calls = calls_from_inputs(
        bucketed,
        graph=INT8_GRAPH if waits else graph.name,
        soc_version=soc.name,
        precision=precision,
        int8=request.int8,
    )
    for call in calls:
        check_call(call, bundle.manifest.dtype)
    data = tuple(_data_files(model, graph))
    return AscendJob(
        graph=graph,
        data=data,
        soc_version=soc.name,
        precision=precision,
        int8=request.int8,
        buckets=tuple(request.buckets),
        bucketed=bucketed,
        outputs=tuple(engine_outputs(portable_model)),
        calls=tuple(calls),
        graph_sha256=sha256_of_file(graph),
        data_sha256=tuple(_digest(portable, graph.parent / name) for name in data),
        weights_sha256=bundle.manifest.weights_digest,
    )


def check_float(bundle: Bundle) -> None:
    """Raise BadInputError for a quantized bundle."""
    quantization = bundle.manifest.quantization
    if quantization is not None:
        raise BadInputError(
            f"{bundle.path}, a bundle with {quantization.kind} matrices",
            expected="a portable graph in floating point: ATC cannot read quantized portable graphs",
            remedy="export the checkpoint again without --quantize; to quantize, use ATC's tools on the float model",
        )


def _model_from_file(path: Path) -> onnx.ModelProto:
    try:
        return onnx.load(path, load_external_data=False)
    except Exception as error:  # onnx does not export protobuf's DecodeError
        raise BadInputError(
            f"{path} cannot be read as ONNX: {error}", expected="an ONNX graph", remedy="check the path"
        ) from error


def _check_same_values(model: onnx.ModelProto, portable: onnx.ModelProto, path: Path) -> None:
    """Raise BadInputError unless a quantized graph has the inputs and outputs of the portable graph."""
    for kind in ("input", "output"):
        found, expected = (
            [(value.name, value.type.tensor_type.elem_type) for value in getattr(each.graph, kind)]
            for each in (model, portable)
        )
        if found != expected:
            raise BadInputError(
                f"{path} has other {kind}s than the bundle's portable graph",
                expected=f"the same {len(expected)} {kind}s in the same order, with the same names and types",
                remedy="quantize the portable graph of this bundle without changing its inputs and outputs",
            )


def _data_files(model: onnx.ModelProto, graph: Path) -> list[str]:
    """Return the external data files of the graph.

    Raises BadInputError for a missing file or one outside its folder.
    """
    tensors = [each for each in model.graph.initializer if onnx.external_data_helper.uses_external_data(each)]
    names = dict.fromkeys(entry.value for each in tensors for entry in each.external_data if entry.key == "location")
    for name in names:
        path = PurePosixPath(name)
        if path.is_absolute() or ".." in path.parts or not (graph.parent / name).is_file():
            raise BadInputError(
                f"{graph} refers to weights in {name!r}",
                expected="a file in the folder of the graph or below",
                remedy="copy the graph with its weights, or export again",
            )
    return list(names)


def _digest(bundle: Bundle, path: Path) -> str:
    """Return the manifest's digest if it has one, since weights are gigabytes; otherwise compute it."""
    for record in bundle.manifest.files:
        if bundle.file(record.path) == path:
            return record.sha256
    return sha256_of_file(path)
