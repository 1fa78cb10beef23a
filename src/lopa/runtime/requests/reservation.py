"""Reserved places in an engine, for requests whose preparation has not ended."""

import threading
from dataclasses import dataclass, field


@dataclass(frozen=True, eq=False)
class Reservation:
    """Result of Engine.reserved, for one call of Engine.submit_many."""

    places: int
    _cancelled: threading.Event = field(default_factory=threading.Event, init=False, repr=False)

    def cancel(self) -> None:
        """Stop the preparation of its requests, from any thread. submit_many then raises PreparationStoppedError."""
        self._cancelled.set()

    @property
    def cancelled(self) -> bool:
        """True once cancel() was called."""
        return self._cancelled.is_set()
