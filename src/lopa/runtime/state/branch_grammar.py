"""What a branch knows of the grammar that its answer satisfies: a protocol, which lopa.runtime.grammar implements."""

from collections.abc import Iterator
from typing import Protocol, Self

from lopa.runtime.contract import Bool


class BranchGrammar(Protocol):
    """A grammar that has read the first `length` tokens of an answer, all of which it allows. Immutable.

    `room` is the number of positions that the answer has left, the end of text included.
    """

    @property
    def length(self) -> int:
        """Tokens that were read."""

    @property
    def ended(self) -> bool:
        """Whether the last of them was an end of text."""

    @property
    def remasked(self) -> int:
        """Tokens behind the first masked position that the grammar has refused so far."""

    @property
    def has_text(self) -> Bool:
        """[vocabulary]: tokens that write text."""

    def after(self, token: int, room: int) -> Self | None:
        """Return the grammar behind `token`, with `room` left there; None where the token cannot stand here.

        Either the grammar does not allow it, or the answer could not end in time.
        """

    def forced(self) -> tuple[int, ...]:
        """Return the tokens that must follow whatever the model says; none where there is a choice."""

    def way_out(self, room: int) -> int:
        """Return the first token of an ending that fits into `room`, this position included."""

    def allows(self, token: int) -> bool:
        """Return whether `token`, an end of text included, may follow, whatever room is left."""

    def allowed(self) -> Bool:
        """Return which tokens may follow, [vocabulary], ends of text included."""

    def pieces(self, token: int) -> Iterator[int]:
        """Yield tokens that write the beginning of what `token` writes, the longest first."""

    def with_refused(self, count: int) -> Self:
        """Return this grammar after `count` more tokens were refused and remasked."""
