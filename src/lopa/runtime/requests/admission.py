"""Admission of requests to an engine: its load and limits, reserved places, and the prompt rows that join a round.

A prompt whose rows attend to each other is computed in one forward, and all running requests stall during it. Only the
number of such prompts in one round and their frequency can be limited. Of others a round computes a piece.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

from lopa.runtime.errors import LopaError

MAX_NUM_BATCHED_TOKENS = 1024
"""Default limit, about the rows per round of eight requests with four branches and a block of 32."""


class Admission:
    """A limit of `rows_per_round` prompt rows per round.

    A prompt longer than the limit waits until the sum of the limits of all rounds in which it waited reaches its rows.
    A round therefore computes prompts within the limit, or one longer prompt. The average over many rounds stays below
    the limit.
    """

    def __init__(self, rows_per_round: int) -> None:
        self._rows_per_round = rows_per_round
        self._available = 0

    def number_joining(self, rows: Sequence[int], *, nothing_runs: bool) -> int:
        """Return how many of the first waiting requests join this round, in order; at least one if nothing runs.

        `rows` holds the number of prompt rows that each request would compute. Its length is at most the number of
        requests that may still join.
        """
        if not rows:
            return 0  # a round without waiting requests adds no credit for later ones
        self._available = min(self._available + self._rows_per_round, max(rows[0], self._rows_per_round))
        number = 0
        for each in rows:
            stalls_nothing = nothing_runs and number == 0
            if each > self._available and not stalls_nothing:
                return number
            self._available = max(0, self._available - each)
            number += 1
        return number


@dataclass(eq=False)
class Reservation:
    """Places for requests whose preparation has not ended: Engine.reserved, for one call of Engine.submit_many."""

    places: int
    cancelled: bool = field(default=False, init=False)
    """True once cancel() was called."""

    def cancel(self) -> None:
        """Stop the preparation of its requests, from any thread. submit_many then raises PreparationStoppedError."""
        self.cancelled = True


@dataclass(frozen=True)
class PoolLoad:
    """The load of a pool's requests."""

    cache_rows: int = 0
    """Rows in the prefix caches of running decodes: prompts and finished blocks."""
    prompt_rows: int = 0
    """Number of prompt tokens of running decodes."""
    prefix_cached_tokens: int = 0
    """Rows in the prefix cache, which later requests may use."""
    prefix_hit_tokens: int = 0
    """Prompt rows found in the prefix cache instead of computed, since the pool was made."""
    prefix_hits: int = 0
    """Requests that found such rows, since the pool was made."""
    evicted_blocks: int = 0
    """Blocks dropped from the prefix cache, since the pool was made. A prompt that is stored whole is one block."""
    rounds: int = 0
    """Rounds since the pool was made."""
    free_cache_rows: int | None = None
    """Rows that the device still has memory for; None without a known limit, and before the first request."""


@dataclass(frozen=True, kw_only=True)
class EngineStatus(PoolLoad):
    """The state of an engine. The load of its requests is that after the last completed round."""

    running: int
    """Number of running decodes; copies that share a decode count once."""
    waiting: int
    """Number of waiting decodes."""
    reserved: int
    """Number of places reserved for requests that are not submitted yet."""
    max_num_seqs: int
    """Maximum number of running decodes."""
    queue_limit: int
    """Maximum number of waiting decodes."""
    cache_rows_limit: int
    """Cache rows of `max_num_seqs` decodes with the model's longest prompts and answers, or those that the device has
    memory for."""
    draining: bool
    """True if new requests are rejected because of drain()."""
    closed: bool
    """True if new requests are rejected because of close() or a failure."""
    failure: LopaError | None
    """Error that closed the engine, or None."""
