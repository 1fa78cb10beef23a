"""Shape buckets of the GPU report: timed shapes run unpadded, and decodes fit."""

from pathlib import Path

import pytest
from tools.gpu.buckets import bucket_plan_of_shapes
from tools.gpu.run import SHAPES

from lopa.bench.buckets.forward_recording import sizes_of_step
from lopa.bench.gpu.host_share import _CONFIG, _PROMPT_ROWS
from lopa.export.tensorrt.bucket_coverage import check_buckets_cover_defaults
from lopa.runtime.bundle import Bundle
from lopa.runtime.bundle.buckets import BucketTable, bucket_from_sizes, bucket_plan_from_file
from lopa.runtime.bundle.record import json_from_record
from lopa.runtime.contract.sizes import Sizes
from lopa.runtime.decoder import Decoder
from lopa.runtime.decoding.step import Step


@pytest.mark.parametrize("device", ["cpu", "cuda:0"])
def test_each_shape_is_a_bucket_and_the_plan_is_valid(tiny_bundle: Path, tmp_path: Path, device: str) -> None:
    bundle, path = Bundle.open(tiny_bundle), tmp_path / "shape_buckets.json"
    path.write_bytes(json_from_record(bucket_plan_of_shapes(bundle, SHAPES, device)))
    plan = bucket_plan_from_file(path, bundle)
    check_buckets_cover_defaults(plan.buckets, bundle.manifest, "the plan")
    table = BucketTable(plan.buckets)
    for shape in SHAPES:
        sizes = Sizes(1, shape.branches, shape.window, shape.prefix, shape.wanted)
        bucket = table.bucket_for(sizes)
        assert bucket == bucket_from_sizes(sizes, bucket.seconds)


def test_decoding_steps_run_in_small_buckets(tiny_bundle: Path) -> None:
    bundle = Bundle.open(tiny_bundle)
    table = BucketTable(bucket_plan_of_shapes(bundle, SHAPES, "cuda:0").buckets)
    steps: list[Step] = []
    with Decoder.open(tiny_bundle, threads=1) as decoder:
        for _ in decoder.stream(list(range(10, 10 + _PROMPT_ROWS)), _CONFIG, on_step=steps.append):
            pass
    buckets = [table.bucket_for(sizes_of_step(step)) for step in steps[1:]]
    assert max(bucket.window for bucket in buckets) <= 128
    assert max(bucket.prefix for bucket in buckets) <= 512
