import shutil
from dataclasses import replace
from pathlib import Path

import msgspec
import onnx
import pytest
from tests.runtime.ascend.graphs import altered_graph, quantized
from tests.runtime.bundle.test_buckets import BUCKETS, bucket

from lopa.export.ascend.job import AscendJob, AscendRequest, job_from_bundle
from lopa.runtime.bundle import Bundle, sha256_of_file
from lopa.runtime.errors import BadInputError

REQUEST = AscendRequest("Ascend910B1", BUCKETS, None, False, None)


@pytest.fixture
def bundle(tiny_portable: Path) -> Bundle:
    return Bundle.open(tiny_portable)


def test_decisions_of_a_job(bundle: Bundle) -> None:
    job = job_from_bundle(bundle, REQUEST)
    assert (job.precision, job.dynamic, job.data) == ("origin", True, ("model.onnx.data",))
    assert job.graph_sha256 == sha256_of_file(bundle.graph)
    assert job.data_sha256 == (bundle.manifest.weights_digest,)
    assert [job.call_of_bucket(index).name for index in range(3)] == ["buckets"] * 3


def test_buckets_with_one_tuple_share_an_om(bundle: Bundle) -> None:
    buckets = [bucket(1, 4, 16, 64), bucket(1, 1, 96, 128), bucket(1, 2, 32, 64)]
    job = job_from_bundle(bundle, AscendRequest("Ascend910B1", buckets, None, True, None))
    assert [call.name for call in job.calls] == ["bucket-0", "bucket-1"]
    assert [job.call_of_bucket(index).name for index in range(3)] == ["bucket-0", "bucket-1", "bucket-0"]
    assert (job.precision, job.calls[0].graph) == ("fp16", "portable_int8.onnx")


def key(job: AscendJob, version: str | None = "8.0") -> str:
    return job.cache_key(version)


def test_the_key_covers_all_inputs(bundle: Bundle) -> None:
    job = job_from_bundle(bundle, REQUEST)
    keys = [
        key(job),
        key(job, "8.1"),
        key(job, None),
        *(
            key(job_from_bundle(bundle, replace(REQUEST, **change)))  # type: ignore[arg-type]
            for change in (
                {"soc_version": "Ascend910B2"},
                {"precision": "bf16"},
                {"buckets": BUCKETS[1:]},
                {"buckets": [bucket(1, 4, 64, 64, 2.0), *BUCKETS[1:]]},
                {"int8": True},
            )
        ),
        key(replace(job, graph_sha256="0")),
        key(replace(job, data_sha256=("0",))),
        key(replace(job, weights_sha256="0")),
    ]
    assert len(set(keys)) == len(keys)
    assert key(job_from_bundle(bundle, REQUEST)) == keys[0]


def test_a_bundle_without_a_portable_graph(tiny_bundle: Path) -> None:
    with pytest.raises(BadInputError, match="--dialect portable"):
        job_from_bundle(Bundle.open(tiny_bundle), REQUEST)


def test_a_quantized_graph(bundle: Bundle, tmp_path: Path) -> None:
    graph = altered_graph(bundle.graph, tmp_path / "int8.onnx", quantized)
    request = AscendRequest("Ascend910B1", BUCKETS, None, True, graph)
    with pytest.raises(BadInputError, match=r"refers to weights in 'model\.onnx\.data'"):
        job_from_bundle(bundle, request)
    shutil.copy(bundle.weights, tmp_path)
    job = job_from_bundle(bundle, request)
    assert [call.graph for call in job.calls] == ["int8.onnx"] * 3
    assert not job.dynamic
    assert job.data_sha256 == (bundle.manifest.weights_digest,)
    assert job.weights_sha256 == bundle.manifest.weights_digest


def without_an_output(model: onnx.ModelProto) -> None:
    del model.graph.output[0]


def other_type(model: onnx.ModelProto) -> None:
    model.graph.input[0].type.tensor_type.elem_type = onnx.TensorProto.INT32


@pytest.mark.parametrize(("alter", "message"), [(without_an_output, "other outputs"), (other_type, "other inputs")])
def test_a_quantized_graph_of_another_form(bundle: Bundle, tmp_path: Path, alter: object, message: str) -> None:
    graph = altered_graph(bundle.graph, tmp_path / "int8.onnx", alter)  # type: ignore[arg-type]
    with pytest.raises(BadInputError, match=message):
        job_from_bundle(bundle, AscendRequest("Ascend910B1", BUCKETS, None, True, graph))


@pytest.mark.parametrize("content", [None, b"no graph at all"])
def test_a_quantized_graph_that_cannot_be_read(bundle: Bundle, tmp_path: Path, content: bytes | None) -> None:
    path = tmp_path / "int8.onnx"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(BadInputError, match="cannot be read as ONNX"):
        job_from_bundle(bundle, AscendRequest("Ascend910B1", BUCKETS, None, True, path))


@pytest.mark.parametrize("tiny_quantized", ["int8"], indirect=True)
def test_a_quantized_bundle_is_rejected(bundle: Bundle, tiny_quantized: Path) -> None:
    quantization = Bundle.open(tiny_quantized).manifest.quantization
    quantized_bundle = replace(bundle, manifest=msgspec.structs.replace(bundle.manifest, quantization=quantization))
    for each in (quantized_bundle, Bundle.open(tiny_quantized)):  # with a portable graph, and without
        with pytest.raises(BadInputError, match="a bundle with int8 matrices") as caught:
            job_from_bundle(each, REQUEST)
        assert "without --quantize" in caught.value.remedy
