"""A request that is ready to be submitted. Knows no engine."""

import threading
from dataclasses import dataclass, field

from lopa.runtime.errors import BadInputError
from lopa.runtime.requests.job import Job


@dataclass(frozen=True, eq=False)
class PreparedRequest:
    """Made by Engine.prepare, for one Engine.submit. Its deadline counts from its preparation."""

    _job: Job
    _taken: threading.Lock = field(default_factory=threading.Lock, init=False, repr=False)

    def _take(self) -> Job:
        """Return the request; once. Raises BadInputError the second time."""
        if not self._taken.acquire(blocking=False):
            raise BadInputError(
                "a prepared request that was submitted before",
                expected="one that was not: each is decoded once",
                remedy="prepare another one",
            )
        return self._job
