"""How much of the machine the grammar of one request may take. Knows no process."""

from dataclasses import dataclass

from lopa.runtime.checked_values import real_number, whole_number

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
        real_number("cpu_seconds", self.cpu_seconds, least=0.0, most=_LONGEST, above=True)
        whole_number("memory_bytes", self.memory_bytes, least=_MIN_MEMORY, most=2**40)
        whole_number("processes", self.processes, least=1, most=MAX_GRAMMAR_PROCESSES)

    @property
    def kept_seconds(self) -> float:
        """Processor time that compiling a grammar again may take in the process that decodes."""
        return self.cpu_seconds / _SHARE_OF_SECONDS

    @property
    def kept_bytes(self) -> int:
        """Memory that a compiled grammar may take in the process that decodes."""
        return self.memory_bytes // _SHARE_OF_MEMORY
