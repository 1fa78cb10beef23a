"""CPU devices by core numbers, and conflicts between devices."""

import pytest

from lopa.runtime.errors import BadInputError
from lopa.runtime.sessions.cpu_cores import check_cpu_device, check_devices, cores_from_device


@pytest.mark.parametrize(
    ("device", "cores"),
    [("cpu:0", (0,)), ("cpu:7", (7,)), ("cpu:0-1", (0, 1)), ("cpu:10-12", (10, 11, 12)), ("cpu:4-4", (4,))],
)
def test_cores_of_device(device: str, cores: tuple[int, ...]) -> None:
    assert cores_from_device(device) == cores
    check_cpu_device(device, range(20))


@pytest.mark.parametrize("device", ["cpu", "cuda:0", "cuda:0-1", "numpy", "mpi"])
def test_other_devices_have_no_cores(device: str) -> None:
    assert cores_from_device(device) is None


@pytest.mark.parametrize("device", ["cpu:", "cpu:x", "cpu:-1", "cpu:1-", "cpu:3-1", "cpu:0,1", "cpu:٣", "cpu0"])
def test_malformed_cores_raise(device: str) -> None:
    with pytest.raises(BadInputError, match="cpu:N-M") as caught:
        check_cpu_device(device, range(4))
    assert repr(device) in caught.value.received


def test_missing_cores_raise() -> None:
    check_cpu_device("cpu", {2, 3})
    check_cpu_device("cpu:2-3", {2, 3})
    with pytest.raises(BadInputError, match="no core 1, 4") as caught:
        check_cpu_device("cpu:1-4", {2, 3})
    assert "2, 3" in caught.value.expected


@pytest.mark.parametrize(
    "devices",
    [
        ["cpu"],
        ["cpu:0", "cpu:1"],
        ["cpu:0-3", "cpu:4-5", "cuda:0", "cuda:1"],
        ["cpu", "cuda:0"],
        ["numpy", "cpu:1"],
        ["cuda:0+cuda:1", "cuda:2+cuda:3"],
    ],
)
def test_compatible_devices(devices: list[str]) -> None:
    check_devices(devices)


@pytest.mark.parametrize(
    ("devices", "message"),
    [
        (["cpu", "cpu"], "device 'cpu' twice"),
        (["cuda:0", "cuda:1", "cuda:0"], "device 'cuda:0' twice"),
        (["cpu:0-2", "cpu:3", "cpu:2-3"], "'cpu:0-2' and 'cpu:2-3' share core 2"),
        (["cpu:1", "cpu:1-1"], "share core 1"),
        (["cpu:0", "cpu"], "cpu has every core"),
        (["cpu", "cuda:0", "cpu:5"], "cpu has every core"),
        (["cpu:0+cpu:1", "cpu:1"], "device 'cpu:1' twice"),
        (["cpu:0+cpu:1", "cuda:0+cpu:0-1"], "share core 0"),
        (["cpu:0", "mpi"], "mpi is all ranks"),
        (["mpi:cuda", "cuda:0"], "mpi:cuda is all ranks"),
        ([], "devices []"),
        ("cpu", "devices 'cpu'"),
    ],
)
def test_conflicting_devices_raise(devices: list[str] | str, message: str) -> None:
    with pytest.raises(BadInputError) as caught:
        check_devices(devices)
    assert message in caught.value.received
    assert caught.value.expected
    assert caught.value.remedy
