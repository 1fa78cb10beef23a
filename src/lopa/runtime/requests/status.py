"""Records of an engine's load and state."""

from dataclasses import dataclass

from lopa.runtime.errors import LopaError


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
    """Cache rows of `max_num_seqs` decodes with the model's longest prompts and answers."""
    draining: bool
    """True if new requests are rejected because of drain()."""
    closed: bool
    """True if new requests are rejected because of close() or a failure."""
    failure: LopaError | None
    """Error that closed the engine, or None."""
