"""Sharing of equal rows by cost table, by model size or on request, with the same tokens."""

import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
from tests.runtime.bundle.test_costs import costs_of
from tests.runtime.requests.batch_mates import decoded
from tests.runtime.state.test_shared_rows import rows_of

from lopa.runtime import Decoder
from lopa.runtime.bundle import Bundle
from lopa.runtime.bundle.costs import CostTable, ForwardCost, costs_name
from lopa.runtime.bundle.record import json_from_record
from lopa.runtime.decoding.step import Step
from lopa.runtime.row_sharing import FasterSharing
from lopa.runtime.state.packed_rows import PackedRows


def rows_64(prefix: int = 64) -> PackedRows:
    """Return 4 branches of 64 rows, all sampled; rules of sizes ignore the contents."""
    rows = rows_of(np.random.default_rng(0), block=4, changes=0, commit=0, lengths=(64,) * 4)
    return replace(rows, prefix=prefix, sampled=(np.arange(64),) * 4)


def table_of(bundle: Bundle, row: float, seen: float) -> CostTable:
    """Return a table where each row takes `row` seconds, plus `seen` for each row that it attends to."""
    points = [
        ForwardCost(branches=b, window=w, prefix=p, seconds=b * w * (row + seen * (p + w)))
        for b in (1, 2, 4)
        for w in (32, 64)
        for p in (64, 512, 2048)
    ]
    return CostTable(costs_of(bundle, points=points))


def test_a_cost_table_weighs_rows_against_attention(tiny_bundle: Path) -> None:
    bundle, rows = Bundle.open(tiny_bundle), rows_64()
    cheap, dear = (FasterSharing(bundle.manifest, table_of(bundle, 1e-4, seen)) for seen in (1e-9, 1e-6))
    assert cheap(rows, 192, 192)
    assert not cheap(rows, 250, 250), "within the estimate's error"
    # 192 rows attending to 64 + 192 take 192 x (100 + 256) us; 256 attending to 64 + 64 take 256 x (100 + 128).
    assert not dear(rows, 192, 192)
    assert dear(rows, 140, 140)


def test_model_sizes_decide_without_a_table(tiny_bundle: Path) -> None:
    """Attention is a large share of the cost in a small model, and a small one with large matrices."""
    manifest = Bundle.open(tiny_bundle).manifest
    sizes = manifest.dimensions
    larger = {name: 16 * getattr(sizes, name) for name in ("hidden_size", "intermediate_size", "vocab_size")}
    large = msgspec.structs.replace(manifest, dimensions=msgspec.structs.replace(sizes, **larger))
    assert not FasterSharing(manifest, None)(rows_64(), 230, 230)
    assert FasterSharing(large, None)(rows_64(), 230, 230)
    integers = {name: msgspec.structs.replace(record, dtype="int8") for name, record in manifest.tensors.items()}
    limits = [
        max(rows for rows in range(100, 256) if FasterSharing(each, None)(rows_64(512), rows, rows))
        for each in (manifest, msgspec.structs.replace(manifest, tensors=integers))
    ]
    assert limits[1] < limits[0], "integers speed up products, not attention"


def shared_steps(steps: list[Step]) -> int:
    return sum(len(step.rows.lengths) < len(step.branches) for step in steps)


def test_request_table_and_sizes_decide(tiny_bundle: Path, tmp_path: Path, prompt: tuple[int, ...]) -> None:
    path = Path(shutil.copytree(tiny_bundle, tmp_path / "bundle"))
    bundle = Bundle.open(path)
    options: dict[str, Any] = {"branches": 4, "attention": "block_causal", "max_new_tokens": 48, "block_size": 16}
    found = {}
    for name, seen in (("none", None), ("cheap", 1e-9), ("dear", 1e-3), ("broken", None)):
        if seen is not None:
            table = json_from_record(table_of(bundle, 1e-4, seen).costs)
            (path / costs_name("cpu")).write_bytes(table)
        elif name == "broken":
            (path / costs_name("cpu")).write_text("{")
        with Decoder.open(path, threads=1) as decoder:
            found[name] = decoded(decoder, prompt, **options)
            if name == "none":
                found["yes"] = decoded(decoder, prompt, **options, deduplicate_rows=True)
                found["no"] = decoded(decoder, prompt, **options, deduplicate_rows=False)
    assert len({result.token_ids for result, _ in found.values()}) == 1
    counts = {name: shared_steps(steps) for name, (_, steps) in found.items()}
    assert counts["no"] == 0
    assert counts["dear"] < counts["cheap"] <= counts["yes"]
    assert counts["broken"] == counts["none"], "an unusable table counts as none"
    rows = {name: sum(step.rows.input_ids.size for step in steps) for name, (_, steps) in found.items()}
    assert rows["yes"] < 0.95 * rows["no"]
