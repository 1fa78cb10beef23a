"""The grammars of a decoder's requests: prepared in this process, or in a helper process within limits."""

import logging
import math
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cached_property

from lopa.runtime.bundle import Bundle
from lopa.runtime.contract import Int64
from lopa.runtime.errors import (
    BadInputError,
    GrammarRefusedError,
    MissingBackendError,
    PreparationStoppedError,
    raise_if_from_handler,
)
from lopa.runtime.generation_config import GenerationConfig
from lopa.runtime.grammar.grammar_limits import GrammarLimits
from lopa.runtime.grammar.grammar_matcher import GrammarMatcher
from lopa.runtime.grammar.grammar_of_holes import state_of_holes
from lopa.runtime.grammar.grammar_source import (
    GrammarRequest,
    any_text_request,
    matcher_from_request,
    request_from_config,
)
from lopa.runtime.grammar.helper import GrammarHelper, is_helper_supported
from lopa.runtime.grammar.holes_grammar import HolesState
from lopa.runtime.grammar.preparation import matcher_from_checked, state_from_checked, state_from_request
from lopa.runtime.grammar.reasoning_budget import BudgetedState
from lopa.runtime.grammar.state import GrammarState
from lopa.runtime.grammar.vocabulary import Vocabulary, vocabulary_from_tokenizer
from lopa.runtime.options import GRAMMARS, DecodingParams
from lopa.runtime.text.encoded_holes import EncodedHoles
from lopa.runtime.text.tokenizer import THINK, Tokenizer

_LOG = logging.getLogger(__name__)
RequestState = GrammarState | BudgetedState | HolesState
"""State of a request's grammar, at the beginning of its answer."""


class RequestGrammars:
    """Maker of the grammar states of requests for one bundle."""

    def __init__(self, bundle: Bundle, tokenizer: Tokenizer, limits: GrammarLimits | None) -> None:
        """Prepare grammars in a helper process if there are `limits` and the system supports it."""
        self._bundle, self._tokenizer = bundle, tokenizer
        self.helper: GrammarHelper | None = None
        """Process that prepares grammars, or None."""
        if limits is not None and is_helper_supported():
            self.helper = GrammarHelper(bundle, limits)
        elif limits is not None:
            _LOG.warning("no fork on this system: grammars are prepared in this process, within the library's limits")

    @cached_property
    def vocabulary(self) -> Vocabulary:
        """The bundle's tokens for grammars, read on first use."""
        return vocabulary_from_tokenizer(self._tokenizer, self._bundle.manifest)

    @cached_property
    def are_supported(self) -> bool:
        """True if requests may have a grammar: llguidance is installed and supports the bundle's tokenizer."""
        try:
            return bool(self.vocabulary.size)
        except (BadInputError, MissingBackendError):
            return False

    def prepare(self) -> None:
        """Read the bundle's tokens, and start the helper process if there is one.

        Raises MissingBackendError if llguidance is not installed, and BadInputError for a tokenizer that grammars do
        not support.
        """
        self.vocabulary.prepare()
        if self.helper is not None:
            self.helper.start()

    def close(self) -> None:
        """End the helper process."""
        if self.helper is not None:
            self.helper.close()

    def check(self, config: GenerationConfig, params: DecodingParams) -> None:
        """Check the grammar of `config`.

        Raises GrammarRefusedError if it does not parse or cannot end within max_new_tokens, and MissingBackendError if
        llguidance is not installed. Raises BadInputError for a budget of reasoning that does not end with </think>.
        """
        if params.has_grammar:
            self._state(config, params, _return_true)

    def state_in_time(
        self,
        config: GenerationConfig,
        params: DecodingParams,
        prompt: Int64,
        holes: EncodedHoles | None,
        *,
        is_wanted: Callable[[], bool] | None,
        due: float | None,
    ) -> RequestState | None:
        """Return the state of the request's grammar, which it has, behind the `prompt` [length].

        Return None once the request is `due` (perf_counter's clock). It then ends without a step. Raises as `check`
        does, and PreparationStoppedError once `is_wanted` returns False.
        """
        is_wanted = is_wanted or _return_true

        def in_time() -> bool:
            return due is None or time.perf_counter() < due

        def goes_on() -> bool:
            return is_wanted() and in_time()

        grammar: RequestState
        try:
            if holes is None:
                grammar = self._state(config, params, goes_on)
            else:
                grammar = self._state_of_holes(config, holes, goes_on)
        except PreparationStoppedError:
            if is_wanted() and not in_time():
                return None
            raise
        whole_answer = config.json_schema is not None or config.regex is not None
        if not isinstance(grammar, GrammarState) or params.reasoning_budget == math.inf or whole_answer:
            return grammar
        is_open = self._tokenizer.is_in_reasoning(prompt.tolist())
        return BudgetedState(grammar, int(params.reasoning_budget), is_open=is_open)

    def _state(self, config: GenerationConfig, params: DecodingParams, is_wanted: Callable[[], bool]) -> GrammarState:
        marks = self._tokenizer.reasoning_marks
        if params.reasoning_budget != math.inf and marks != THINK:
            received = f"reasoning_budget for a model whose reasoning ends with {marks[1]}"
            raise BadInputError(received, expected=f"a model that ends it with {THINK[1]}", remedy="remove it")
        vocabulary = self.vocabulary  # before the grammar is read, so that its own errors are not the grammar's
        if any(getattr(config, name) is not None for name in GRAMMARS):
            request = request_from_config(config, params.positions)
        else:
            request = any_text_request(params.positions, vocabulary)
        with _grammar_errors():
            if self.helper is None:
                return state_from_request(request, vocabulary)
            return state_from_checked(request, self.helper.prepare(request, is_wanted), vocabulary)

    def _state_of_holes(
        self, config: GenerationConfig, holes: EncodedHoles, is_wanted: Callable[[], bool]
    ) -> HolesState:
        vocabulary = self.vocabulary

        def read(request: GrammarRequest) -> GrammarMatcher:
            if self.helper is None:
                return matcher_from_request(request, vocabulary)
            return matcher_from_checked(request, self.helper.prepare(request, is_wanted), vocabulary)

        with _grammar_errors():
            return state_of_holes(config, holes, read)


@contextmanager
def _grammar_errors() -> Iterator[None]:
    """Raise GrammarRefusedError for a BadInputError."""
    try:
        yield
    except BadInputError as error:
        raise_if_from_handler(error)
        raise GrammarRefusedError(error.received, expected=error.expected, remedy=error.remedy) from error


def _return_true() -> bool:
    return True
