"""Token IDs of a text with holes, and the tokens at the boundary of given text and holes.

A given text and a hole are encoded apart. The last token before a hole may be the beginning of a longer token that the
model would write. The first token behind a hole may be the end of one. Such a token joins the hole: the model decides
its position again, among the tokens that begin or end with its text. The given text stays the same.
"""

from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import accumulate

import numpy as np

from lopa.runtime.bundle.manifest import Manifest
from lopa.runtime.checked_values import shown
from lopa.runtime.contract import Int64
from lopa.runtime.errors import BadInputError, PromptTooLongError
from lopa.runtime.text.prompt_ids import is_token_id
from lopa.runtime.text.text_with_holes import Hole, Part, TextWithHoles
from lopa.runtime.text.tokenizer import Tokenizer

Span = tuple[int, int]
"""Positions from a start to an exclusive end."""


@dataclass(frozen=True)
class BoundaryToken:
    """A position at the edge of a hole whose token begins or ends with given text."""

    position: int
    token: int
    """Token of the given text alone, which is always allowed."""
    text: str
    is_start: bool
    """True at the start of a hole, where the token begins with `text`. At the end of a hole it ends with `text`."""


@dataclass(frozen=True, eq=False)
class EncodedHoles:
    """A text with holes as token IDs."""

    ids: Int64
    """[length]: given tokens, and mask tokens in the holes."""
    holes: tuple[Span, ...]
    """Positions of the holes, from left to right, with the boundary tokens that belong to them."""
    given: tuple[str, ...]
    """Given texts before, between and behind the holes."""
    boundary_tokens: tuple[BoundaryToken, ...] = ()
    in_turn: bool = False
    """True if the holes are filled from left to right, in blocks, instead of together."""
    regexes: tuple[str | None, ...] = ()
    """Expression of each hole's text; empty if no hole has one."""
    shorter: "tuple[EncodedHoles, ...]" = ()
    """The same text with shorter holes, ascending. The first round chooses a length."""
    grows: bool = False
    """True if the holes begin with the length of the only `shorter` text, and the model lengthens and shortens them."""
    tokenizer: Tokenizer | None = field(default=None, repr=False)
    token_texts: dict[int, str] = field(default_factory=dict, repr=False)
    """Texts of tokens that were candidates for a boundary token, since most are candidates in many rounds."""

    @property
    def lengths(self) -> "tuple[EncodedHoles, ...]":
        """The `shorter` ones and this one, ascending."""
        return (*self.shorter, self)

    @cached_property
    def given_ids(self) -> tuple[tuple[int, ...], ...]:
        """Token IDs before, between and behind the holes."""
        edges = [0, *(edge for span in self.holes for edge in span), len(self.ids)]
        return tuple(tuple(self.ids[start:end].tolist()) for start, end in zip(edges[::2], edges[1::2], strict=True))

    @cached_property
    def count(self) -> int:
        """Number of positions in all holes."""
        return sum(end - start for start, end in self.holes)

    @cached_property
    def key(self) -> Hashable:
        """Everything besides the IDs that a decode depends on."""
        return (
            self.holes,
            self.boundary_tokens,
            self.in_turn,
            self.grows,
            tuple(each.key for each in self.shorter),
            self.regexes,
        )

    @cached_property
    def boundary_token_at(self) -> dict[int, BoundaryToken]:
        """The boundary tokens by position."""
        return {each.position: each for each in self.boundary_tokens}

    def resized(self, sizes: Sequence[int], mask: int) -> "EncodedHoles":
        """Return the text with holes of these `sizes`, at least those of their boundary tokens, filled with `mask`."""
        ids, holes = [*self.given_ids[0]], []
        for given, size in zip(self.given_ids[1:], sizes, strict=True):
            holes.append((len(ids), len(ids) + size))
            ids += [mask] * size + [*given]
        moved = {
            edge: to
            for (start, end), (first, last) in zip(self.holes, holes, strict=True)
            for edge, to in ((start, first), (end - 1, last - 1))
        }
        tokens = tuple(replace(each, position=moved[each.position]) for each in self.boundary_tokens)
        return replace(self, ids=np.array(ids, np.int64), holes=tuple(holes), boundary_tokens=tokens)

    def allows(self, position: int, token: int) -> bool:
        """Return whether `token` may be written at `position`."""
        boundary = self.boundary_token_at.get(position)
        if boundary is None or token == boundary.token:
            return True
        if token not in self.token_texts:
            assert self.tokenizer is not None  # boundary tokens have one
            self.token_texts[token] = text_of_token(self.tokenizer, token)
        text = self.token_texts[token]
        return text.startswith(boundary.text) if boundary.is_start else text.endswith(boundary.text)


def encode_lengths(
    text: TextWithHoles,
    tokenizer: Tokenizer,
    manifest: Manifest,
    *,
    special_tokens: bool = False,
    in_turn: bool = False,
    token_healing: bool = True,
) -> EncodedHoles:
    """Return the token IDs of a text with the longest holes, and those of its `shorter` lengths.

    If the model has an expand token, the only shorter length is the one with which the holes begin. Raises as
    `encode_holes` does, and BadInputError for ranges of holes that are filled in turn.
    """
    texts, grows = text.with_lengths(), manifest.special_tokens.expand is not None
    *shorter, longest = (
        encode_holes(
            each, tokenizer, manifest, special_tokens=special_tokens, in_turn=in_turn, token_healing=token_healing
        )
        for each in (dict.fromkeys((texts[0], texts[-1])) if grows else texts)
    )
    if shorter and in_turn:
        raise BadInputError(
            "ranges of lengths for holes that are filled in turn",
            expected="holes that are filled together",
            remedy="remove block_size, or give each hole one length",
        )
    return replace(longest, shorter=tuple(shorter), grows=grows and bool(shorter))


def encode_holes(
    text: TextWithHoles,
    tokenizer: Tokenizer,
    manifest: Manifest,
    *,
    special_tokens: bool = False,
    in_turn: bool = False,
    token_healing: bool = True,
) -> EncodedHoles:
    """Return the token IDs of a text with holes; the first part gets the bundle's beginning-of-text token.

    If the model has an expand token, an end of text follows the last part, unless this is IDs (DreamOn).

    The holes are filled together, or `in_turn`. Tokens at their edges are unmasked again with `token_healing`.

    Raises BadInputError for invalid IDs, and PromptTooLongError for a text that is too long. If rows predict the next
    position, a text that begins with a hole is refused too.
    """
    mask, vocabulary = manifest.special_tokens.mask, manifest.dimensions.vocab_size
    encoded: list[list[int]] = []
    for number, part in enumerate(text.parts):
        first_bos = number == 0 and manifest.decoding.add_bos
        if isinstance(part, Hole):
            bos = tokenizer.encode("", add_bos=True) if first_bos else []
            encoded += [bos, [mask] * part.tokens] if bos else [[mask] * part.tokens]
        elif isinstance(part, str):
            encoded.append(tokenizer.encode(part, add_bos=first_bos, special_tokens=special_tokens))
        else:
            encoded.append(_checked_ids(part, vocabulary))
    parts: list[Part] = [*text.parts]
    if len(encoded) > len(parts):  # a beginning-of-text token before a hole
        parts.insert(0, ())
    if manifest.special_tokens.expand is not None and not isinstance(parts[-1], tuple):
        encoded.append([manifest.special_tokens.eos])
        parts.append(())
    starts = [0, *accumulate(map(len, encoded))]
    _check_length(starts[-1], manifest)
    ids = np.array([each for piece in encoded for each in piece], np.int64)
    holes: list[Span] = []
    found: list[BoundaryToken] = []
    for number, part in enumerate(parts):
        if not isinstance(part, Hole):
            continue
        start, end = starts[number], starts[number + 1]
        before = parts[number - 1] if number else ()
        if token_healing and isinstance(before, str) and len(encoded[number - 1]) > 1:
            boundary = _boundary_token(ids, start - 1, before, tokenizer, is_start=True)
            start -= boundary is not None
            found += [boundary] if boundary is not None else []
        after = parts[number + 1] if number + 1 < len(parts) else ()
        if token_healing and isinstance(after, str):
            boundary = _boundary_token(ids, end, after, tokenizer, is_start=False)
            end += boundary is not None
            found += [boundary] if boundary is not None else []
        ids[start:end] = mask
        holes.append((start, end))
    if manifest.prediction_shift and holes[0][0] == 0:
        raise BadInputError(
            "a text that begins with a hole, for a model whose rows predict the next position",
            expected="a token before the first hole",
            remedy="begin with a text, e.g. a line break",
        )
    regexes = tuple(hole.regex for hole in text.holes)
    return EncodedHoles(
        ids,
        tuple(holes),
        _given_texts(parts, tokenizer),
        tuple(found),
        in_turn,
        regexes if any(regexes) else (),
        tokenizer=tokenizer,
    )


def text_of_token(tokenizer: Tokenizer, token: int) -> str:
    """Return the text that `token` adds behind other text. It has U+FFFD for a part of a character."""
    context = tokenizer.encode("a", add_bos=False)
    return tokenizer.decode([*context, token])[1:]


def _boundary_token(
    ids: Int64, position: int, text: str, tokenizer: Tokenizer, *, is_start: bool
) -> BoundaryToken | None:
    """Return the boundary token at `position`, which is at the edge of the given `text`.

    Return None for a token that does not write whole characters of it.
    """
    token = int(ids[position])
    own = text_of_token(tokenizer, token)
    fits = text.endswith(own) if is_start else text.startswith(own)
    return BoundaryToken(position, token, own, is_start) if own and fits else None


def _given_texts(parts: Sequence[Part], tokenizer: Tokenizer) -> tuple[str, ...]:
    texts = [""]
    for part in parts:
        if isinstance(part, Hole):
            texts.append("")
        else:
            texts[-1] += part if isinstance(part, str) else tokenizer.decode(list(part))
    return tuple(texts)


def _checked_ids(ids: Sequence[int], vocabulary: int) -> list[int]:
    if not all(is_token_id(each, vocabulary) for each in ids):
        raise BadInputError(
            f"invalid ids {shown(list(ids))} in a text with holes",
            expected=f"integers from 0 to {vocabulary - 1}",
            remedy="encode the text with the bundle's tokenizer",
        )
    return list(ids)


def _check_length(length: int, manifest: Manifest) -> None:
    positions = manifest.dimensions.max_positions
    if length > positions:
        raise PromptTooLongError(
            f"the text has {length} tokens with its holes, but this model has {positions} positions",
            expected=f"at most {positions} tokens, holes included",
            remedy="shorten the text or the holes",
        )
