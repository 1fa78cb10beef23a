"""A provider that raises at any call fails with a typed error in every command, never with an unexpected one."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from lopa.cli.main import main
from lopa.cli.start import doctor
from lopa.cli.start.fastest_device import lines_of_fastest
from lopa.runtime import EngineFailedError
from lopa.runtime.bundle import Bundle
from lopa.runtime.device_families import DeviceStatus
from lopa.runtime.sessions import numpy_session
from lopa.runtime.sessions.session import Session, open_session
from lopa.runtime.sessions.wrapped_session import TypedSession
from lopa.runtime.webgpu import webgpu_library

ERROR = "RuntimeError: the driver is confused"
METHODS = (
    "open",
    *("start", "wait", "commit", "read_rows", "release", "append_rows", "keep_rows", "append_kept", "shorten"),
    *("prefix_length", "free_rows", "free", "close"),
)
_real_open: Callable[..., Session] = numpy_session.open_session


class Raising:
    """A session of which one method raises what a vendor's library raises."""

    def __init__(self, session: Session, method: str) -> None:
        self._session, self._method = session, method

    def __getattr__(self, name: str) -> Any:
        if name == self._method:
            return self._raise
        return getattr(self._session, name)

    def _raise(self, *_: object) -> None:
        raise RuntimeError("the driver is confused")


@pytest.fixture(params=METHODS)
def failing(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Make one method of sessions on "numpy" fail. Return its name."""

    def broken(bundle: Bundle, device: str, *, threads: int | None) -> Any:
        session = Raising(_real_open(bundle, device, threads=threads), request.param)
        if request.param == "open":
            session._raise()
        return session

    monkeypatch.setattr(numpy_session, "open_session", broken)
    return str(request.param)


def test_each_method_is_typed(failing: str, tiny_bundle: Path) -> None:
    bundle = Bundle.open(tiny_bundle)
    if failing == "open":
        with pytest.raises(EngineFailedError, match=f"numpy failed while opening: {ERROR}"):
            open_session(bundle, "numpy")
        return
    session = TypedSession(open_session(bundle, "numpy"))
    arguments = {
        **{"commit": 4, "read_rows": 4, "append_rows": 2, "keep_rows": 3, "append_kept": 2, "shorten": 2},
        **{"close": 0, "free_rows": 0},
    }.get(failing, 1)
    doing = "closing" if failing == "close" else "decoding"
    with pytest.raises(EngineFailedError, match=f"numpy failed while {doing}: {ERROR}"):
        getattr(session, failing)(*[0] * arguments)


@pytest.mark.parametrize("failing", ["open", "wait", "free"], indirect=True)
def test_doctor(failing: str, tiny_bundle: Path) -> None:
    """A device that opens and then fails gets a line, and the others are timed."""
    found = list(lines_of_fastest(Bundle.open(tiny_bundle), ("cpu", "numpy"), report_all=False))
    assert f"failed while {'opening' if failing == 'open' else 'decoding'}: {ERROR}" in found[0]
    assert found[0].startswith("numpy: not measured: numpy failed")
    assert found[-1] == "cpu is the only device that opens"


@pytest.mark.parametrize(
    "error", [OSError("libfake.so: cannot open"), MemoryError("16 GB"), OSError(24, "files")], ids=repr
)
def test_a_device_that_cannot_load(error: Exception, tiny_bundle: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`doctor` gives it a line. A library that does not load is the device's failure, and not a file's."""

    def broken(*_: object, **__: object) -> Any:
        raise error

    monkeypatch.setattr(numpy_session, "open_session", broken)
    found = list(lines_of_fastest(Bundle.open(tiny_bundle), ("numpy", "cpu")))
    assert found[0].startswith(f"numpy: not measured: numpy failed while opening: {type(error).__name__}: ")
    assert found[-1] == "cpu is the only device that opens"
    is_library = isinstance(error, OSError) and error.errno is None
    with pytest.raises(EngineFailedError if is_library else type(error)):
        open_session(Bundle.open(tiny_bundle), "numpy")


COMMANDS = {
    ("doctor",): ("open", "start", "append_rows", "close"),
    ("generate", "--device", "numpy", "--max-new-tokens", "4"): (
        *("open", "start", "wait", "commit", "release", "free", "close"),
    ),
    # calls that these make first: without a failure they take long
    ("verify", "--device", "numpy"): ("open", "wait", "commit"),
    ("bench", "costs", "--device", "numpy"): ("open", "append_rows"),
}


@pytest.mark.parametrize(
    ("command", "failing"),
    [(command, method) for command, methods in COMMANDS.items() for method in methods],
    ids=lambda each: each if isinstance(each, str) else each[0],
    indirect=["failing"],
)
def test_no_command_ends_unexpectedly(
    command: tuple[str, ...],
    failing: str,
    tiny_bundle: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(doctor, "timed_devices", lambda _: ["cpu", "numpy"])
    more = ["1+1="] if command[0] == "generate" else []
    with pytest.raises(SystemExit) as caught:
        main([*command, str(tiny_bundle), *more])
    output = "".join(capsys.readouterr())
    assert caught.value.code in (0, 1, 3), output  # 1 is verify's result
    assert "unexpected" not in output
    assert ERROR in output or caught.value.code == 0
    if command[0] == "generate":
        assert (caught.value.code == 0) == (failing in ("close", "free"))  # after the answer they are logged


def test_doctor_reports_a_family_whose_search_fails(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def confused(_: str) -> list[DeviceStatus]:
        raise RuntimeError("the driver is confused")

    monkeypatch.setattr(webgpu_library, "find_devices", confused)
    with pytest.raises(SystemExit) as caught:
        main(["doctor"])
    assert caught.value.code == 0
    assert f"webgpu:N: {ERROR}" in capsys.readouterr().out
