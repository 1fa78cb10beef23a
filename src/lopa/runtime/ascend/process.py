"""What pyACL has once for a process: init and finalize, and for every device how many sessions use it.

Knows neither memory nor models. Threads of several devices may call at once.
"""

import atexit
import threading

from lopa.runtime.ascend.calls import REPEATED_INIT, AclCalls, AclError, calls_of_installed_acl


class AclProcess:
    """The only one of a process is `THE_PROCESS`."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._calls: AclCalls | None = None
        self._ours = False
        """Whether acl.init was called here, and not by another library before."""
        self._users: dict[int, int] = {}
        """Sessions by device."""
        self._peers: set[tuple[int, int]] = set()
        """Devices and those that they may copy from."""

    def calls(self) -> AclCalls:
        """pyACL, initialized at the first call. Raises MissingBackendError without it, AclError."""
        with self._lock:
            if self._calls is None:
                calls = calls_of_installed_acl()
                try:
                    calls("init")
                    self._ours = True
                except AclError as error:
                    if error.code != REPEATED_INIT:
                        raise
                self._calls = calls
                atexit.register(self.finalize)
            return self._calls

    def use_device(self, device: int) -> None:
        """Make it the calling thread's. Every call needs one of `leave_device`."""
        calls = self.calls()
        with self._lock:
            calls("rt.set_device", device)
            self._users[device] = self._users.get(device, 0) + 1

    def leave_device(self, device: int) -> None:
        """Reset it once; CANN counts, and frees what it has when it was reset as often as it was set."""
        calls = self.calls()
        with self._lock:
            self._users[device] -= 1
            if not self._users[device]:
                del self._users[device]
                self._peers = {pair for pair in self._peers if device not in pair}
            calls("rt.reset_device", device)

    def enable_peer(self, device: int, peer: int) -> bool:
        """Let `device`, which is the calling thread's, copy from `peer`; False where that is impossible."""
        calls = self.calls()
        with self._lock:
            if (device, peer) in self._peers:
                return True
            if not calls("rt.device_can_access_peer", device, peer):
                return False
            calls("rt.device_enable_peer_access", peer, 0)
            self._peers.add((device, peer))
            return True

    def finalize(self) -> None:
        """The end of the process. Nothing is done while sessions are open: what they use would be gone."""
        with self._lock:
            if self._calls is None or self._users:
                return
            calls, self._calls = self._calls, None
            atexit.unregister(self.finalize)
            if self._ours:
                self._ours = False
                calls("finalize")


THE_PROCESS = AclProcess()
