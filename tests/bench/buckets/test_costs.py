"""Sources of a forward's seconds, and the memory of a shape bucket."""

import shutil
from pathlib import Path

import msgspec
import numpy as np
import pytest
from tests.runtime.bundle.test_costs import costs_of

from lopa.bench.buckets.bucket_costs import bucket_costs, bytes_of_bucket
from lopa.runtime.accelerator.padding import padded_batch
from lopa.runtime.bundle import Bundle
from lopa.runtime.bundle.buckets import ShapeBucket
from lopa.runtime.bundle.costs import costs_name
from lopa.runtime.bundle.record import json_from_record
from lopa.runtime.bundle.weights import weights_from_bundle
from lopa.runtime.contract import WindowBatch
from lopa.runtime.contract.sizes import Sizes
from lopa.runtime.errors import BadInputError
from lopa.runtime.sessions.numpy_forward import NumpyForward
from lopa.runtime.sessions.prefix_cache import cache_shape_from_manifest


@pytest.fixture
def bundle(tiny_bundle: Path, tmp_path: Path) -> Bundle:
    return Bundle.open(shutil.copytree(tiny_bundle, tmp_path / "bundle"))


def test_precedence_of_the_cost_sources(bundle: Bundle, tmp_path: Path) -> None:
    sizes = Sizes(2, 2, 64, 128, 64)
    modelled = bucket_costs(bundle, "cpu", None)
    assert modelled.about.kind == "modelled"
    (bundle.path / costs_name("cpu")).write_bytes(json_from_record(costs_of(bundle)))
    measured = bucket_costs(bundle, "cpu", None)
    assert (measured.about.kind, measured.about.measured) == ("measured", "2026-11-21")
    assert measured.seconds(sizes) == pytest.approx(4 * 64 * 1128e-6)
    slow = [msgspec.structs.replace(point, seconds=1.0) for point in costs_of(bundle).points]
    other = tmp_path / "costs.json"
    other.write_bytes(json_from_record(costs_of(bundle, points=slow)))
    assert bucket_costs(bundle, "cpu", other).seconds(sizes) == 1.0
    assert bucket_costs(bundle, "cuda:0", None).about.kind == "modelled"


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"device": "cuda:0"}, "device cuda:0"),
        ({"contract": 2}, "contract version 2"),
        ({"weights_sha256": "00"}, "weights 00"),
    ],
)
def test_costs_of_other_bundles_are_rejected(
    bundle: Bundle, tmp_path: Path, changes: dict[str, object], message: str
) -> None:
    path = tmp_path / "costs.json"
    path.write_bytes(json_from_record(costs_of(bundle, **changes)))
    with pytest.raises(BadInputError, match=message):
        bucket_costs(bundle, "cpu", path)


def test_the_model_is_flat_below_the_knee_and_linear_above(bundle: Bundle) -> None:
    costs = bucket_costs(bundle, "tensorrt:0", None)

    def seconds(window: int) -> float:
        return costs.seconds(Sizes(1, 1, window, 64, window))

    assert seconds(64) < 1.1 * seconds(16)
    assert seconds(8192) > 1.9 * seconds(4096)
    assert costs.seconds(Sizes(2, 3, 64, 64, 64)) == costs.seconds(Sizes(1, 6, 64, 64, 64))


def test_memory_is_that_of_all_inputs_and_outputs(tiny_bundle_logits: Path) -> None:
    """Compare with the arrays of a real forward; a mask entry has four bytes, as in the portable dialect."""
    bundle = Bundle.open(tiny_bundle_logits)
    bucket = ShapeBucket(requests=2, branches=3, window=32, prefix=128, wanted=17, seconds=1.0)
    one = WindowBatch(
        (0,), *(np.ones((1, 1, 1), np.int64),) * 2, np.ones((1, 1, 1, 1), np.bool_), np.zeros((1, 1, 1), np.int64),
        np.ones(1, np.float32),
    )  # fmt: skip
    batch = padded_batch(one, bucket)
    prefix = cache_shape_from_manifest(bundle.manifest).zeros(2, 128)
    statistics, rows = NumpyForward(weights_from_bundle(bundle), bundle.manifest).run(batch, prefix)
    assert statistics.logits is not None
    arrays = [
        *(
            batch.input_ids,
            batch.position_ids,
            batch.logits_index,
            batch.temperature,
            prefix.mask,
            *prefix.arrays,
            *rows,
        ),
        *(statistics.topk_ids, statistics.topk_logprobs, statistics.entropy, statistics.logits),
    ]
    expected = sum(array.nbytes for array in arrays) + 4 * batch.window_mask.size
    assert bytes_of_bucket(bundle.manifest, Sizes(2, 3, 32, 128, 17)) == expected
