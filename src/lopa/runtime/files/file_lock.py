"""Locks on open files, so that two processes never write one output. Knows no paths.

The lock is flock's. It belongs to the file, not to a name of it, so links and relative paths lead to the same lock. The
kernel releases it when the process ends, however it ends, so there is no stale lock.
"""

import errno

try:
    import fcntl
except ImportError:  # Windows, WebAssembly
    fcntl = None  # type: ignore[assignment]

_HELD = (errno.EWOULDBLOCK, errno.EAGAIN, errno.EACCES)
"""Error numbers when another process has the lock; some network file systems answer EACCES."""
_UNSUPPORTED = (errno.ENOLCK, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS, errno.EINVAL)


class FileIsLockedError(Exception):
    """Another process, or another open file of this one, holds a lock that conflicts."""


def lock_file(descriptor: int, *, shared: bool = False) -> bool:
    """Lock an open file until its descriptor is closed, without waiting.

    An exclusive lock tolerates no other lock, a shared one tolerates shared ones. Returns False where the platform or
    the file system has no locks. Raises FileIsLockedError where the lock is taken, OSError for any other failure.
    """
    if fcntl is None:
        return False
    kind = fcntl.LOCK_SH if shared else fcntl.LOCK_EX
    try:
        fcntl.flock(descriptor, kind | fcntl.LOCK_NB)
    except OSError as error:
        if error.errno in _HELD:
            raise FileIsLockedError from error
        if error.errno in _UNSUPPORTED:
            return False
        raise
    return True
