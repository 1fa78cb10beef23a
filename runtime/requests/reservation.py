"""Places held in an engine for requests that are still being prepared. Knows no engine."""

from dataclasses import dataclass


@dataclass(frozen=True, eq=False)
class Reservation:
    """Made by Engine.reserved, for one Engine.submit_many."""

    places: int
