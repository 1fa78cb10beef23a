"""Where the seconds of a forward over several devices went. Knows numbers only."""

from dataclasses import dataclass


@dataclass(frozen=True)
class DeviceTime:
    """One device's share of a forward."""

    device: str
    branches: int
    seconds: float
    """Of its engine, without the time that the share waited for earlier work of the device."""


@dataclass(frozen=True)
class ForwardSplit:
    """A forward over several devices."""

    devices: tuple[DeviceTime, ...]
    """Those that had a share, in the order of the branches."""
    gather: float
    """Seconds beyond the slowest engine: committed rows still on their way, dealing, waiting, putting together."""
