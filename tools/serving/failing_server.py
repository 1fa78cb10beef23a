"""lopa-export with several devices, of which all but the last fail one after another.

Usage: python -m tools.serving.failing_server FAILING CALLS serve BUNDLE ..

FAILING devices fail within CALLS calls of the session, in a forward, a commit, or a transfer of rows. The soak test
starts this program.
"""

import sys
from typing import Any

import numpy as np
from tests.runtime.failing_device import FailingDevice, Failure

import lopa.runtime.decoder
from lopa.cli.main import main
from lopa.runtime.bundle import Bundle
from lopa.runtime.multi_device.branch_session import BranchParallelSession
from lopa.runtime.sessions.session import Session, open_session


def failing_session(bundle: Bundle, failing: int, calls: int) -> Session:
    """Open `bundle` on `failing` + 1 devices."""
    rng = np.random.default_rng(failing)
    devices = []
    for number in range(failing + 1):
        method = str(rng.choice(["wait", "commit", "keep_rows", "append_kept"]))
        failure = Failure(method, (1 + 2 * number) * calls // (2 * failing + 2) + 1) if number < failing else None
        devices.append(FailingDevice(open_session(bundle, "cpu", threads=1), f"device {number}", failure))
    return BranchParallelSession(devices)


if __name__ == "__main__":
    failing, calls = map(int, sys.argv[1:3])

    def session_from_devices(bundle: Bundle, *_: Any, **__: Any) -> Session:
        """Open the bundle on failing devices instead of those on the command line."""
        return failing_session(bundle, failing, calls)

    lopa.runtime.decoder.session_from_devices = session_from_devices  # type: ignore[attr-defined]
    main(sys.argv[3:])
