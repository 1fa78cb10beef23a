"""A request's grammar in two parts: the costly one, whose result is plain data, and what a decoder makes of that.

The costly part may run in another process (`helper`), within limits. Knows no process.
"""

import mmap
import time
from dataclasses import dataclass, replace
from pathlib import Path

from lopa.runtime.checked_values import shown
from lopa.runtime.errors import BadInputError
from lopa.runtime.grammar.limits import GrammarLimits
from lopa.runtime.grammar.source import (
    GrammarRequest,
    hints_from_request,
    library_grammar,
    reading_from_grammar,
    reading_from_request,
)
from lopa.runtime.grammar.state import CHARACTERS_OF_POSITION, GrammarState, state_of_nothing
from lopa.runtime.grammar.vocabulary import Vocabulary

_EXACT_SECONDS, _MAX_MATCHERS = 0.005, 64
"""The shortest endings of an expression are looked for while decoding if a matcher takes no more processor time, and
with no more matchers: other requests wait meanwhile."""


@dataclass(frozen=True)
class CheckedGrammar:
    """Result of the costly part."""

    grammar: str
    """In the library's own form."""
    hints: tuple[bytes, ...]
    ending: bytes
    """A text with which the answer may end before its first token."""
    exact: bool
    """True where the shortest endings of an expression are cheap enough to look for while decoding."""


def checked_grammar(request: GrammarRequest, vocabulary: Vocabulary, limits: GrammarLimits) -> CheckedGrammar:
    """Compile a grammar and find a way to the end of its answer.

    Raises BadInputError for a grammar that cannot be used, and for one whose compiled form takes more than a decoder
    may keep (`limits`). Bounding this call itself is the caller's business.
    """
    grammar = library_grammar(request)
    seconds, memory = time.process_time(), _resident_bytes()
    reading = reading_from_grammar(request, grammar, vocabulary)
    seconds, memory = time.process_time() - seconds, _resident_bytes() - memory
    if seconds > limits.kept_seconds or memory > limits.kept_bytes:
        raise too_costly(request, f"compiling it takes {seconds:.1f} s and {memory >> 20} MiB", limits)
    hints = hints_from_request(request, vocabulary)
    state = state_of_nothing(replace(reading, hints=hints), request.positions)
    expression, size = reading.expression, CHARACTERS_OF_POSITION * request.positions
    exact = expression is not None and expression.makes_matchers_within(_EXACT_SECONDS, size)
    return CheckedGrammar(grammar, hints, state.ending, exact)


def state_of_checked(request: GrammarRequest, checked: CheckedGrammar, vocabulary: Vocabulary) -> GrammarState:
    """Compile a checked grammar for decoding: the state before the first token."""
    reading = reading_from_grammar(request, checked.grammar, vocabulary, checked.hints)
    if reading.expression is not None:
        exact = replace(reading.expression, max_matchers=_MAX_MATCHERS) if checked.exact else None
        reading = replace(reading, expression=exact)
    return GrammarState(reading, checked.ending)


def state_of_request(request: GrammarRequest, vocabulary: Vocabulary) -> GrammarState:
    """Do both parts in this process, within the library's own limits. Raises BadInputError."""
    return state_of_nothing(reading_from_request(request, vocabulary), request.positions)


def too_costly(request: GrammarRequest, found: str, limits: GrammarLimits) -> BadInputError:
    """Return the error of a grammar that takes more than its limits."""
    return BadInputError(
        f"{request.option} {shown(request.text)} is too complex: {found}",
        expected=f"a grammar that is prepared within {limits.cpu_seconds:g} s and {limits.memory_bytes >> 20} MiB, "
        f"and whose compiled form takes at most {limits.kept_seconds:g} s and {limits.kept_bytes >> 20} MiB of them",
        remedy=f"write a simpler {request.option}: fewer patterns joined by allOf, smaller multiples and counts",
    )


def _resident_bytes() -> int:
    """Return the memory that this process has now; 0 where that is not known."""
    try:
        pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1])
    except OSError:
        return 0  # of systems without /proc: there the processor time alone is bounded
    return pages * mmap.PAGESIZE
