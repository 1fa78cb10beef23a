"""A request that is ready for submission."""

import threading
from dataclasses import dataclass, field

from lopa.runtime.errors import BadInputError
from lopa.runtime.requests.job import Job


@dataclass(frozen=True, eq=False)
class PreparedRequest:
    """Result of Engine.prepare, for one call of Engine.submit. Its deadline counts from the preparation."""

    _job: Job
    _taken: threading.Lock = field(default_factory=threading.Lock, init=False, repr=False)

    def _take(self) -> Job:
        """Return the request, once. Raises BadInputError the second time."""
        if not self._taken.acquire(blocking=False):
            raise BadInputError(
                "the prepared request was already submitted",
                expected="a new prepared request, since each is decoded once",
                remedy="call prepare again",
            )
        return self._job
