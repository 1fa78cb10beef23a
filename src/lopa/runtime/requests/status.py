"""What an engine is doing, as a record. Knows no engine."""

from dataclasses import dataclass

from lopa.runtime.errors import LopaError
from lopa.runtime.plan.renamed_options import warn_renamed


@dataclass(frozen=True)
class PoolLoad:
    """What the requests of a pool hold."""

    cache_rows: int = 0
    """Rows of their prefix caches: prompts and finished blocks."""
    prompt_rows: int = 0
    """Ids of their prompts."""
    stored_rows: int = 0
    """Rows of prompts kept for requests to come."""
    saved_rows: int = 0
    """Rows of prompts that were found in the store instead of being computed, since the pool was made."""
    rounds: int = 0
    """Since the pool was made."""


@dataclass(frozen=True)
class EngineStatus:
    """An engine at one moment; rows and rounds are those after the last round that has ended."""

    running: int
    """Decodes that have joined and not ended; copies that share one are one."""
    waiting: int
    """Decodes that have not joined."""
    reserved: int
    """Places held for requests that are not submitted yet."""
    max_num_seqs: int
    """Decodes that may run at once."""
    queue_limit: int
    """Decodes that may wait beside those that run."""
    cache_rows: int
    """Rows in the prefix caches of what runs: prompts and finished blocks."""
    cache_rows_limit: int
    """Rows that all slots would have with the longest prompts and answers that the model takes."""
    prompt_rows: int
    """Ids of the prompts of what runs."""
    stored_rows: int
    """Rows of prompts kept for requests to come."""
    saved_rows: int
    """Rows of prompts found there instead of being computed, since the engine was made."""
    rounds: int
    """Since the engine was made."""
    draining: bool
    """Whether new requests are refused because of drain()."""
    closed: bool
    """Whether they are because of close() or a failure."""
    failure: LopaError | None
    """The error after which the engine closed by itself."""

    @property
    def slots(self) -> int:
        """Former name of `max_num_seqs`."""
        warn_renamed("slots", "max_num_seqs", stacklevel=3)
        return self.max_num_seqs
