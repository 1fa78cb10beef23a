"""Preparation of a request's grammar: a costly part that returns plain data, and its use in a decoder.

The costly part may run in another process (`helper`), within limits. This module does not depend on processes.
"""

import mmap
import time
from dataclasses import dataclass, replace
from pathlib import Path

from lopa.runtime.checked_values import shown
from lopa.runtime.errors import BadInputError
from lopa.runtime.grammar.grammar_limits import GrammarLimits
from lopa.runtime.grammar.grammar_matcher import GrammarMatcher
from lopa.runtime.grammar.grammar_source import (
    GrammarRequest,
    hints_from_request,
    library_grammar,
    matcher_from_grammar,
    matcher_from_request,
)
from lopa.runtime.grammar.state import CHARACTERS_PER_POSITION, GrammarState, initial_state
from lopa.runtime.grammar.vocabulary import Vocabulary

_EXACT_SECONDS, _MAX_MATCHERS = 0.005, 64
"""Limits for exact endings of expressions during decoding: seconds of processor time per matcher, and number of
matchers. All other requests wait for such a search."""


@dataclass(frozen=True)
class CheckedGrammar:
    """Result of the costly part of the preparation."""

    grammar: str
    """Grammar in the library's form."""
    hints: tuple[bytes, ...]
    ending: bytes
    """Text with which the answer may end before its first token."""
    exact: bool
    """True if shortest endings are cheap enough to search for while decoding."""


def check_grammar(request: GrammarRequest, vocabulary: Vocabulary, limits: GrammarLimits) -> CheckedGrammar:
    """Compile a grammar and find an ending of its answer.

    Raises BadInputError for an invalid grammar, and for one whose compiled form exceeds the decoder's part of `limits`.
    The caller limits the time and memory of this call.
    """
    grammar = library_grammar(request)
    seconds, memory = time.process_time(), _resident_bytes()
    matcher = matcher_from_grammar(request, grammar, vocabulary)
    seconds, memory = time.process_time() - seconds, _resident_bytes() - memory
    if seconds > limits.decoder_seconds or memory > limits.decoder_bytes:
        raise too_costly(request, f"compiling it takes {seconds:.1f} s and {memory >> 20} MiB", limits)
    hints = hints_from_request(request, vocabulary)
    state = initial_state(replace(matcher, hints=hints), request.positions)
    expression, size = matcher.expression, CHARACTERS_PER_POSITION * request.positions
    exact = expression is not None and expression.makes_matchers_within(_EXACT_SECONDS, size)
    return CheckedGrammar(grammar, hints, state.ending, exact)


def state_from_checked(request: GrammarRequest, checked: CheckedGrammar, vocabulary: Vocabulary) -> GrammarState:
    """Compile a checked grammar for decoding. Return the state before the first token."""
    return GrammarState(matcher_from_checked(request, checked, vocabulary), checked.ending)


def matcher_from_checked(request: GrammarRequest, checked: CheckedGrammar, vocabulary: Vocabulary) -> GrammarMatcher:
    """Compile a checked grammar for decoding. Return the matcher of an empty answer."""
    matcher = matcher_from_grammar(request, checked.grammar, vocabulary, checked.hints)
    if matcher.expression is None:
        return matcher
    exact = replace(matcher.expression, max_matchers=_MAX_MATCHERS) if checked.exact else None
    return replace(matcher, expression=exact)


def state_from_request(request: GrammarRequest, vocabulary: Vocabulary) -> GrammarState:
    """Compile the grammar in this process, within the library's own limits. Return the state before the first token.
    Raises BadInputError.
    """
    return initial_state(matcher_from_request(request, vocabulary), request.positions)


def too_costly(request: GrammarRequest, found: str, limits: GrammarLimits) -> BadInputError:
    """Return the error of a grammar that exceeds its limits."""
    return BadInputError(
        f"{request.option} {shown(request.text)} is too complex: {found}",
        expected=f"preparation within {limits.cpu_seconds:g} s and {limits.memory_bytes >> 20} MiB, "
        f"of which compiling takes at most {limits.decoder_seconds:g} s and {limits.decoder_bytes >> 20} MiB",
        remedy=f"simplify {request.option}: use fewer patterns joined by allOf, and smaller multiples and counts",
    )


def _resident_bytes() -> int:
    """Return the resident memory of this process in bytes, or 0 if unknown."""
    try:
        pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1])
    except OSError:
        return 0  # systems without /proc bound the processor time only
    return pages * mmap.PAGESIZE
