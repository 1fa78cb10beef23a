"""Run a command in a network namespace with loopback only, or in the machine's network if that is not allowed."""

import fcntl
import os
import shutil
import socket
import struct
import subprocess
import sys

_UNSHARE = ("unshare", "--map-root-user", "--net")
_FLAGS_OF_INTERFACE, _UP = 0x8914, 0x1  # SIOCSIFFLAGS, IFF_UP
_INSIDE = "--inside"


def raise_loopback() -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as opened:
        fcntl.ioctl(opened, _FLAGS_OF_INTERFACE, struct.pack("16sh14x", b"lo", _UP))


if __name__ == "__main__":
    command = sys.argv[1:]
    if command[0] == _INSIDE:
        raise_loopback()
        os.execvp(command[1], command[1:])
    allowed = shutil.which(_UNSHARE[0]) and subprocess.run([*_UNSHARE, "true"], capture_output=True).returncode == 0
    if allowed:
        os.execvp(_UNSHARE[0], [*_UNSHARE, sys.executable, __file__, _INSIDE, *command])
    print("cannot create a network namespace: Ray will listen on this machine's network", file=sys.stderr)
    os.execvp(command[0], command)
