"""Resource limits of the grammar of one request. This module does not depend on processes."""

from dataclasses import dataclass

from lopa.runtime.checked_values import check_float, check_int

_SECONDS_DIVISOR, _MEMORY_DIVISOR = 4, 16
"""Divisors of the limits in the decoding process. Its waiting requests hold compiled grammars, by default up to 72 in a
server.
"""
_MAX_SECONDS = 3600.0
_MIN_MEMORY = 64 * 2**20
MAX_GRAMMAR_PROCESSES = 64


@dataclass(frozen=True)
class GrammarLimits:
    """Limits of the helper process that compiles the grammars of requests (docs/how-to/structured-output.md).

    The decoding process compiles an accepted grammar again. This may take a quarter of the processor time and a
    sixteenth of the memory. Raises BadInputError for invalid values.
    """

    cpu_seconds: float = 4.0
    """Seconds of processor time for one grammar: compiling it and finding its shortest answer."""
    memory_bytes: int = 256 * 2**20
    """Bytes of address space for one grammar, beyond the memory of the idle helper."""
    processes: int = 4
    """Grammars compiled at the same time; others wait."""

    def __post_init__(self) -> None:
        check_float("cpu_seconds", self.cpu_seconds, min=0.0, max=_MAX_SECONDS, above=True)
        check_int("memory_bytes", self.memory_bytes, min=_MIN_MEMORY, max=2**40)
        check_int("processes", self.processes, min=1, max=MAX_GRAMMAR_PROCESSES)

    @property
    def decoder_seconds(self) -> float:
        """Seconds of processor time for compiling a grammar again in the decoding process."""
        return self.cpu_seconds / _SECONDS_DIVISOR

    @property
    def decoder_bytes(self) -> int:
        """Bytes of a compiled grammar in the decoding process."""
        return self.memory_bytes // _MEMORY_DIVISOR
