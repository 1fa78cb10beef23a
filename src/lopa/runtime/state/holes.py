"""The holes of a text, as a decode uses them."""

from collections.abc import Mapping, Sequence
from typing import Protocol

from lopa.runtime.contract import Int64


class Holes(Protocol):
    """The holes of a text. lopa.runtime.text.encoded_holes implements it."""

    @property
    def ids(self) -> Int64:
        """[length]: tokens of the text, any in its holes."""

    @property
    def lengths(self) -> "Sequence[Holes]":
        """The same text with shorter holes, ascending, and itself."""

    @property
    def holes(self) -> tuple[tuple[int, int], ...]:
        """Positions of the holes, from left to right, each from a start to an exclusive end."""

    @property
    def grows(self) -> bool:
        """True if the model changes the lengths while it fills the holes, from the first of `lengths` to the last."""

    @property
    def in_turn(self) -> bool:
        """True if the holes are filled from left to right, in blocks, instead of together."""

    @property
    def boundary_ids(self) -> Mapping[int, int]:
        """Tokens of given text at the edges of holes, by position. Only some other tokens may replace them."""

    def resized(self, sizes: "Sequence[int]", mask: int) -> "Holes":
        """Return the same text with holes of these `sizes`, filled with `mask`."""

    def allows(self, position: int, token: int) -> bool:
        """Return whether `token` may be written at `position`."""
