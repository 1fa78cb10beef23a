"""Locks on open files, so that two processes never write one output.

The lock is taken with flock. It belongs to the file, not to its name, so links and relative paths lead to the same
lock. The kernel releases it when the process ends, so there are no stale locks.
"""

import errno

try:
    import fcntl
except ImportError:  # not available on Windows and WebAssembly
    fcntl = None  # type: ignore[assignment]

_HELD_ERRORS = (errno.EWOULDBLOCK, errno.EAGAIN, errno.EACCES)
"""Error numbers for a lock held by another process. Some network file systems return EACCES."""
_UNSUPPORTED = (errno.ENOLCK, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS, errno.EINVAL)


class FileIsLockedError(Exception):
    """Another process, or another open file of this process, holds a conflicting lock."""


def lock_file(descriptor: int, *, shared: bool = False) -> bool:
    """Lock an open file without waiting, until its descriptor is closed.

    An exclusive lock excludes all others; a shared lock excludes exclusive ones. The result is False if the platform or
    file system has no locks. Raises FileIsLockedError for a conflict and OSError for any other failure.
    """
    if fcntl is None:
        return False
    kind = fcntl.LOCK_SH if shared else fcntl.LOCK_EX
    try:
        fcntl.flock(descriptor, kind | fcntl.LOCK_NB)
    except OSError as error:
        if error.errno in _HELD_ERRORS:
            raise FileIsLockedError from error
        if error.errno in _UNSUPPORTED:
            return False
        raise
    return True
