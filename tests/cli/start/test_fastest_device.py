"""doctor BUNDLE: the choice of the fastest device, and the lines about the others."""

from pathlib import Path

import pytest

from lopa.bench.forward.comparison import SideResult
from lopa.bench.forward.work import ForwardShape
from lopa.cli.start.fastest_device import lines_of_fastest, verdict_of
from lopa.runtime.bundle import Bundle


def result(side: str, seconds: float, first: float = 1.0) -> SideResult:
    return SideResult(side, ForwardShape(1, 32, 64, 32), seconds, seconds, first / seconds, 1.0, 0.0)


@pytest.mark.parametrize(
    ("seconds", "message"),
    [
        ((1.0, 0.5, 2.0), "b is the fastest, 2.00 times as fast as a ("),
        ((1.0, 0.97, 2.0), "a is the fastest, within 5 % ("),  # less than the variation between runs
        ((1.0, 3.0, 2.0), "a is the fastest, within 5 % ("),
        ((1.0,), "a is the only device that opens"),
    ],
)
def test_the_fastest_device_must_be_clearly_faster(seconds: tuple[float, ...], message: str) -> None:
    assert verdict_of([result(name, each) for name, each in zip("abc", seconds, strict=False)]).startswith(message)


def test_every_device_is_measured_or_has_a_reason(tiny_bundle: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("openvino")
    monkeypatch.setattr("lopa.cli.start.fastest_device._ROUNDS", 1)
    *lines, verdict = lines_of_fastest(Bundle.open(tiny_bundle), ("cpu", "openvino:CPU", "openvino:GPU.9"))
    assert lines[0].startswith("openvino:GPU.9: not measured: device 'openvino:GPU.9', but OpenVINO lists CPU")
    assert lines[1].startswith("cpu: ")
    assert lines[1].endswith(" ms")
    assert lines[2].startswith("openvino:CPU: ")
    assert "100% of best tokens as on cpu" in lines[2]
    assert verdict.split(" ")[0] in ("cpu", "openvino:CPU")
