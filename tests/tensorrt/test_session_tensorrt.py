"""The whole decoder on "tensorrt:N", over stand-ins of TensorRT's runtime and of the CUDA runtime."""

from types import ModuleType

import pytest
from tests.conformance.recorded import TRACES, comparisons_of_file
from tests.tensorrt.stand_in_graphs import StandInGraphs

from lopa.runtime.bundle import Bundle
from lopa.runtime.devices import session_from_devices


@pytest.mark.parametrize("name", ["lopa_bf4_bs32_full", "lopa_bf2_bs16_block"])
def test_recorded_traces_on_one_device(name: str, bundle: Bundle, cuda: StandInGraphs, trt: ModuleType) -> None:
    session = session_from_devices(bundle, ["tensorrt:0"])
    comparisons = comparisons_of_file(TRACES / f"{name}.jsonl.gz", session, bundle.manifest, limit=8)
    session.close()
    assert not [each.mismatch for each in comparisons if each.mismatch is not None]
    assert sum(each.whole for each in comparisons) >= 7
    assert len({profile for profile, _ in trt.engines.forwards}) > 2
    print(trt.engines.forwards, cuda.launches)
    assert cuda.launches > 10
