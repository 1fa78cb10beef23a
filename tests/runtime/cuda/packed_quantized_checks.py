"""Bundles with quantized matrices on the stand-in driver and on its stand-in of cuBLASLt, compared with numpy.

test_on_stand_in.py runs them in a process of its own. Prompts and options are those of the families' recordings.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.conformance.family_traces import (
    FAMILIES,
    MIXTURES,
    checkpoint_of,
    config_of,
    family_trace_files,
    manifest_of,
    read_family_traces,
    sampled,
)
from tests.lockstep import Lockstep
from tests.lone_decode import LoneDecode
from tests.params import params_of
from tests.runtime.cuda.stand_in_ort import StandInOrt

from lopa.runtime.bundle import Bundle
from lopa.runtime.cuda.packed_session import PackedSession
from lopa.runtime.sessions.session import open_session

FILES = {path: checkpoint_of(path).name for path in [*family_trace_files(FAMILIES), *family_trace_files(MIXTURES)]}
STEPS, PROMPTS = 8, 4
"""Most steps of a decode, and prompts of a recording."""
ONE_FILE = {name: path for path, name in reversed(FILES.items())}
"""The first recording of each family."""
LAUNCHES = {
    "int4": {"int4_product.fp32.32"},
    "int8": {"rounded_product.fp32.int8.32", "round_rows.fp32", "rms_norm.fp32.rounded.skip.1024"},
    "fp8": {"round_rows.fp32", "rms_norm.fp32.rounded.1024", "rms_norm.fp32.rounded.skip.1024"},
}
MIXED = ("*.attention.key.weight", "*.mlp.up.weight")
"""Matrices in floating point beside quantized ones."""


def decode(session: Any, bundle: Bundle, path: Path) -> None:
    """Decode a sample of the prompts of a recording, up to a number of steps."""
    header, traces = read_family_traces(path)
    params, manifest = params_of(config_of(header)), manifest_of(bundle.manifest, header)
    for trace in [trace for trace in traces if trace["i"] in sampled(traces)][:PROMPTS]:
        decoding = LoneDecode(session, np.array(trace["prompt_ids"], np.int64), params, manifest)
        for _ in range(STEPS):
            if decoding.stop_reason is None:
                decoding.step()
        decoding.release()


@pytest.mark.parametrize("kind", LAUNCHES)
@pytest.mark.parametrize("family", [*ONE_FILE, "mixed"])
def test_recorded_prompts(
    family: str, kind: str, family_bundle: Callable[..., Path], stand_in_machine: StandInOrt
) -> None:
    """Every forward of the decodes has the results of another device.

    Rows are rounded to 8 bits, where a difference in the last place of float32 may become a step of 1/127 or 1/16. So
    most rows, not all, are equal with int8 and FP8. "mixed" has matrices in floating point beside others that multiply
    the same rows.
    """
    is_mixed = family == "mixed"
    family = "llada" if is_mixed else family
    draws = params_of(config_of(read_family_traces(ONE_FILE[family])[0])).draws_from_logits
    bundle = Bundle.open(family_bundle(family, quantize=kind, exclude=MIXED if is_mixed else (), with_logits=draws))
    driver: Any = stand_in_machine.driver
    before, products = dict(driver.launches), driver.cublaslt.stand_in_lt_products()
    both = Lockstep([open_session(bundle, each) for each in ("cpu" if kind == "int8" else "numpy", "cuda:0")])
    assert isinstance(both.sessions[1], PackedSession)
    decode(both, bundle, ONE_FILE[family])
    for session in both.sessions:
        session.close()
    best = np.concatenate([(one.topk_ids[..., 0] == two.topk_ids[..., 0]).ravel() for one, two in both.seen])
    rows = np.concatenate([np.abs(one.entropy - two.entropy).ravel() for one, two in both.seen])
    print(f"{family} {kind}: {len(rows)} rows, {np.quantile(rows, [0.5, 0.9, 1])}, {np.mean(best):.4f}")
    launched = {name for name, count in driver.launches.items() if count > before.get(name, 0)}
    assert launched >= {name for name in LAUNCHES[kind] if not is_mixed or "rms_norm" not in name}
    assert (driver.cublaslt.stand_in_lt_products() > products) == (kind == "fp8")
    assert np.mean(best) >= (1 if kind == "int4" else 0.95)
    assert np.median(rows) < 1e-4
