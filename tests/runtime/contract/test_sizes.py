"""One record for R, B, W, P and Q, in forwards and in files."""

import json

import msgspec
import numpy as np

from lopa.runtime.bundle.buckets import ShapeBucket, bucket_from_sizes
from lopa.runtime.contract import WindowBatch
from lopa.runtime.contract.sizes import Sizes, sizes_of_batch

SIZES = Sizes(2, 3, 16, 128, 5)
TEXT = {"requests": 2, "branches": 3, "window": 16, "prefix": 128, "wanted": 5}


def test_sizes_of_a_batch() -> None:
    batch = WindowBatch(
        requests=(4, 7),
        input_ids=np.zeros((2, 3, 16), np.int64),
        position_ids=np.zeros((2, 3, 16), np.int64),
        window_mask=np.ones((2, 3, 16, 16), np.bool_),
        logits_index=np.zeros((2, 3, 5), np.int64),
        temperature=np.ones(2, np.float32),
    )
    assert sizes_of_batch(batch, 128) == SIZES


def test_bucket_has_the_sizes_and_seconds() -> None:
    bucket = bucket_from_sizes(SIZES, 0.5)
    assert bucket == ShapeBucket(requests=2, branches=3, window=16, prefix=128, wanted=5, seconds=0.5)
    assert list(json.loads(msgspec.json.encode(bucket)).items()) == [*TEXT.items(), ("seconds", 0.5)]
    assert msgspec.json.decode(json.dumps(TEXT), type=Sizes) == SIZES
