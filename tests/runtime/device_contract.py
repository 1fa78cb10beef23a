"""Tests that every kind of device passes, over its real library or a stand-in for it.

A subclass in the tests of each kind has a fixture `devices`. It sets a test that does not apply to None.
"""

import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import pytest
from tests.conformance.recorded import assert_reproduced
from tests.runtime.check_cases import assert_cases_agree, fits
from tests.runtime.kept_rows import assert_rows_are_kept
from tests.runtime.random_windows import random_batch
from tests.runtime.sequential import sequential
from tests.runtime.shortened import assert_shortened_equals_fresh

from lopa.runtime.bundle import Bundle
from lopa.runtime.decoder import Decoder
from lopa.runtime.devices import session_from_devices
from lopa.runtime.errors import EngineFailedError, MissingBackendError
from lopa.runtime.multi_device.branch_session import BranchParallelSession
from lopa.runtime.sessions.session import Session, open_session

PROMPTS = ["Question: 2 + 3?", "Natalia sold clips to 48 of her friends.", "A"]


@dataclass(frozen=True)
class Devices:
    """Devices of one kind, and a bundle that opens on them."""

    bundle: Bundle
    name: str
    """Name of a device, with {} for its number."""
    fail: Callable[[], object] = lambda: None
    """Let one device fail at a later call."""
    used: Callable[[], object] = lambda: None
    """Check how the device ran the recorded traces."""


def forward_on(session: Session) -> None:
    sequential(session).forward(random_batch(np.random.default_rng(0), (0,), 2, 40, 8))


class DeviceContract:
    """The tests of one kind of devices."""

    several: ClassVar = 2
    """Number of devices that share the branches."""
    one_device: ClassVar = False
    """True if several sessions open on the one device of a machine, although session_from_devices refuses that."""
    largest: ClassVar = {"prefix": 192, "window": 96}
    """Largest prefix and window of the compared shapes."""
    missing: ClassVar[tuple[tuple[str, str], ...]] = ()
    """Modules of the library, each with part of the message if it is missing."""
    absent: ClassVar = ""
    """Part of the message about a device that the machine lacks."""
    failure: ClassVar = ""
    """Part of the reason for which a failing device is dropped."""

    def opened(self, devices: Devices, count: int = 1) -> Session:
        """Open the first devices."""
        if self.one_device:
            sessions = [open_session(devices.bundle, devices.name.format(0), threads=1) for _ in range(count)]
            return sessions[0] if count == 1 else BranchParallelSession(sessions)
        return session_from_devices(devices.bundle, [devices.name.format(number) for number in range(count)], threads=1)

    def test_recorded_traces_on_one_device(self, devices: Devices) -> None:
        session = self.opened(devices)
        assert_reproduced("lopa_bf4_bs32_full", session, devices.bundle.manifest, limit=4)
        assert_reproduced("lopa_bf2_bs16_block", session, devices.bundle.manifest, limit=2)
        session.close()
        devices.used()

    def test_recorded_traces_on_several_devices(self, devices: Devices) -> None:
        session = self.opened(devices, self.several)
        assert isinstance(session, BranchParallelSession)
        assert_reproduced("lopa_bf4_bs32_full", session, devices.bundle.manifest, limit=2)
        assert_reproduced("lopa_bf4_bs16_block", session, devices.bundle.manifest, limit=2)
        session.close()
        assert session.lost == ()

    def test_all_shapes_match_the_reference(self, devices: Devices) -> None:
        """Cover requests, branches, masks, padding rows and prefixes of the engine check."""
        session = self.opened(devices)
        assert assert_cases_agree(devices.bundle, session, rows=True, taken=fits(**self.largest)) > 20
        session.close()

    def test_shortened_request_equals_a_fresh_one(self, devices: Devices) -> None:
        session, plain = self.opened(devices), open_session(devices.bundle, "cpu", threads=1)
        assert_shortened_equals_fresh(session, plain, exact=False, turns=7)
        session.close()
        plain.close()

    def test_kept_rows_begin_later_requests(self, devices: Devices) -> None:
        session = self.opened(devices)
        assert_rows_are_kept(session)
        session.close()

    def test_several_requests_at_once(self, devices: Devices) -> None:
        names = (devices.name.format(0), "cpu")
        found = []
        for name in names:
            with Decoder.open(devices.bundle.path, [name], threads=1) as decoder:
                results = decoder.generate(PROMPTS, decoder.config(max_new_tokens=32, branches=3), max_num_seqs=2)
                found.append([result.token_ids for result in results])
        assert found[0] == found[1]

    def test_failing_device_is_dropped(self, devices: Devices) -> None:
        """The tokens do not change."""
        session = self.opened(devices, 3)
        assert isinstance(session, BranchParallelSession)
        devices.fail()
        assert_reproduced("lopa_bf4_bs32_full", session, devices.bundle.manifest, limit=2)
        session.close()
        (lost,) = session.lost
        assert self.failure in lost.reason

    def test_two_sessions_on_one_device(self, devices: Devices) -> None:
        first, second = self.opened(devices), self.opened(devices)
        first.close()
        first.close()
        first.free(0)
        forward_on(second)
        second.close()
        with pytest.raises(RuntimeError, match=r"after close\(\)"):
            forward_on(second)

    def test_missing_device_raises(self, devices: Devices) -> None:
        with pytest.raises((MissingBackendError, EngineFailedError), match=self.absent) as caught:
            open_session(devices.bundle, devices.name.format(9))
        assert caught.value.exit_code == 3

    def test_missing_library_raises(self, devices: Devices, monkeypatch: pytest.MonkeyPatch) -> None:
        for module, message in self.missing:
            with monkeypatch.context() as patch:
                patch.setitem(sys.modules, module, None)
                with pytest.raises(MissingBackendError, match=message) as caught:
                    open_session(devices.bundle, devices.name.format(0))
            assert caught.value.exit_code == 3
            assert "install" in caught.value.remedy
