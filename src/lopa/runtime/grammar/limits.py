"""How much of the machine the grammar of one request may take. Knows no process."""

from dataclasses import dataclass

from lopa.runtime.checked_values import check_float, check_int

_SHARE_OF_SECONDS, _SHARE_OF_MEMORY = 4, 16
"""Requests that wait hold their compiled grammars: 72 of them, in a server as it starts."""
_LONGEST = 3600.0
_MIN_MEMORY = 64 * 2**20
MAX_GRAMMAR_PROCESSES = 64


@dataclass(frozen=True)
class GrammarLimits:
    """Limits of the helper process in which the grammars of requests are compiled (docs/grammars.md).

    A grammar that passes is compiled once more in the process that decodes. So that part of the work may take a quarter
    of the processor time and a sixteenth of the memory. Raises BadInputError for values that make no sense.
    """

    cpu_seconds: float = 4.0
    """Processor time for one grammar: compiling it and finding its shortest answer."""
    memory_bytes: int = 256 * 2**20
    """Address space for one grammar, beyond that of the idle helper."""
    processes: int = 4
    """Grammars that are compiled at the same time; others wait."""

    def __post_init__(self) -> None:
        check_float("cpu_seconds", self.cpu_seconds, min=0.0, max=_LONGEST, above=True)
        check_int("memory_bytes", self.memory_bytes, min=_MIN_MEMORY, max=2**40)
        check_int("processes", self.processes, min=1, max=MAX_GRAMMAR_PROCESSES)

    @property
    def kept_seconds(self) -> float:
        """Processor time that compiling a grammar again may take in the process that decodes."""
        return self.cpu_seconds / _SHARE_OF_SECONDS

    @property
    def kept_bytes(self) -> int:
        """Memory that a compiled grammar may take in the process that decodes."""
        return self.memory_bytes // _SHARE_OF_MEMORY
