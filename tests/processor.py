"""Abilities of this machine's processor that results of other libraries depend on."""

from pathlib import Path

_INFO = Path("/proc/cpuinfo")
HAS_VNNI = not _INFO.is_file() or "vnni" in _INFO.read_text()
"""True if the processor adds products of bytes in 32 bits. Without it, OpenVINO's sums in 16 bits are cut off."""
NO_VNNI = "OpenVINO's products of 8-bit integers are not exact on processors without VNNI, such as this one"
"""Reason to skip a test."""
