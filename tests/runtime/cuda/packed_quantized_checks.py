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
from tests.lone_decode import LoneDecode
from tests.params import params_of
from tests.runtime.cuda.stand_in_ort import StandInOrt

from lopa.runtime.bundle import Bundle
from lopa.runtime.contract import Statistics
from lopa.runtime.cuda.packed_session import PackedSession
from lopa.runtime.sessions.session import open_session
from lopa.runtime.sessions.tickets import Ticket

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


class Both:
    """A session that does everything twice: on `cuda:0`, and on another device whose results it returns."""

    def __init__(self, bundle: Bundle, device: str) -> None:
        self.sessions = [open_session(bundle, each) for each in (device, "cuda:0")]
        self.tickets: dict[Any, Any] = {}
        self.rows: list[float] = []
        """Largest difference of each row's statistics."""
        self.best: list[bool] = []
        """True for each row with the same best token."""

    def __getattr__(self, name: str) -> Any:
        if not callable(getattr(self.sessions[0], name)):
            return getattr(self.sessions[0], name)

        def call(*arguments: Any) -> Any:
            found = getattr(self.sessions[0], name)(*arguments)
            known = [self.tickets.get(each, each) if isinstance(each, Ticket) else each for each in arguments]
            ours = getattr(self.sessions[1], name)(*known)
            if isinstance(found, Ticket):
                self.tickets[found] = ours
            if isinstance(found, Statistics):
                self.best += (found.topk_ids[..., 0] == ours.topk_ids[..., 0]).ravel().tolist()
                self.rows += np.abs(found.entropy - ours.entropy).ravel().tolist()
            return found

        return call


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
    both = Both(bundle, "cpu" if kind == "int8" else "numpy")
    assert isinstance(both.sessions[1], PackedSession)
    decode(both, bundle, ONE_FILE[family])
    for session in both.sessions:
        session.close()
    print(f"{family} {kind}: {len(both.rows)} rows, {np.quantile(both.rows, [0.5, 0.9, 1])}, {np.mean(both.best):.4f}")
    launched = {name for name, count in driver.launches.items() if count > before.get(name, 0)}
    assert launched >= {name for name in LAUNCHES[kind] if not is_mixed or "rms_norm" not in name}
    assert (driver.cublaslt.stand_in_lt_products() > products) == (kind == "fp8")
    assert np.mean(both.best) >= (1 if kind == "int4" else 0.95)
    assert np.median(both.rows) < 1e-4
