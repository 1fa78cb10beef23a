"""Protocol of a grammar's state on a branch, implemented by lopa.runtime.grammar."""

from collections.abc import Iterator
from typing import Protocol, Self

from lopa.runtime.contract import Bool


class BranchGrammar(Protocol):
    """A grammar that has accepted the first `length` tokens of an answer. It is immutable.

    `remaining` is the number of positions left in the answer, including the end of text.
    """

    @property
    def length(self) -> int:
        """Number of tokens read."""

    @property
    def ended(self) -> bool:
        """True if the last token was an end of text."""

    @property
    def remasked(self) -> int:
        """Number of tokens behind the first masked position that the grammar has rejected and remasked."""

    @property
    def has_text(self) -> Bool:
        """[vocabulary]: True for tokens that write text."""

    def after(self, token: int, remaining: int) -> Self | None:
        """Return the state after `token`, with `remaining` positions left, or None if the token is not possible here.

        A token is not possible if the grammar forbids it or the answer could no longer end in time.
        """

    def forced(self) -> tuple[int, ...]:
        """Return the tokens that must follow; empty if the model has a choice."""

    def first_ending_token(self, remaining: int) -> int:
        """Return the first token of an ending that fits into `remaining` positions, this one included."""

    def allows(self, token: int) -> bool:
        """Return True if `token`, possibly an end of text, may follow, regardless of the remaining positions."""

    def allowed(self) -> Bool:
        """Return the tokens that may follow, [vocabulary], ends of text included."""

    def pieces(self, token: int) -> Iterator[int]:
        """Yield the tokens whose text begins the text of `token`, the longest first."""

    def with_rejected(self, count: int) -> Self:
        """Return this state after `count` more tokens were rejected and remasked."""
