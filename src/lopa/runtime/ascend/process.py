"""Process-wide state of pyACL: init and finalize, and the number of sessions per device.

The state is thread-safe.
"""

import atexit
import threading

from lopa.runtime.ascend.acl_calls import REPEATED_INIT, AclCalls, AclError, load_acl


class AclProcess:
    """State of pyACL in a process. `THE_PROCESS` is the only instance."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._calls: AclCalls | None = None
        self._initialized_here = False
        """True if acl.init was called here, not earlier by another library."""
        self._users: dict[int, int] = {}
        """Number of sessions by device."""

    def calls(self) -> AclCalls:
        """Return pyACL's calls, initialized on first use. Raises MissingBackendError if it is missing, and AclError."""
        with self._lock:
            if self._calls is None:
                calls = load_acl()
                try:
                    calls("init")
                    self._initialized_here = True
                except AclError as error:
                    if error.code != REPEATED_INIT:
                        raise
                self._calls = calls
                atexit.register(self.finalize)
            return self._calls

    def use_device(self, device: int) -> None:
        """Select the device for the calling thread. Every call needs a matching `leave_device`."""
        calls = self.calls()
        with self._lock:
            calls("rt.set_device", device)
            self._users[device] = self._users.get(device, 0) + 1

    def leave_device(self, device: int) -> None:
        """Reset the device once. CANN frees it once resets and sets are equal in number."""
        calls = self.calls()
        with self._lock:
            self._users[device] -= 1
            if not self._users[device]:
                del self._users[device]
            calls("rt.reset_device", device)

    def finalize(self) -> None:
        """Finalize pyACL at the end of the process. The call has no effect while sessions are open, because finalizing
        would break them.
        """
        with self._lock:
            if self._calls is None or self._users:
                return
            calls, self._calls = self._calls, None
            atexit.unregister(self.finalize)
            if self._initialized_here:
                self._initialized_here = False
                calls("finalize")


THE_PROCESS = AclProcess()
