"""Choices of a request as token IDs, checked with the bundle's tokenizer and vocabulary."""

from collections.abc import Sequence

from lopa.runtime.bundle.manifest import Manifest
from lopa.runtime.checked_values import shown
from lopa.runtime.errors import BadInputError, ChoicesRefusedError, raise_if_from_handler
from lopa.runtime.state.choice_scores import EncodedChoice
from lopa.runtime.text.tokenizer import Tokenizer

MAX_WINDOWS = 512
"""Maximum number of windows of a request. It bounds the time of a request, since each window is part of a forward."""


def choices_from_option(
    given: Sequence[str | Sequence[int]], tokenizer: Tokenizer, manifest: Manifest, *, special_tokens: bool
) -> tuple[EncodedChoice, ...]:
    """Return the choices of the option `choices`, in order.

    A text is encoded on its own, without the prompt before it. Special tokens in it are plain text unless
    `special_tokens`. Raises ChoicesRefusedError for a text without tokens, and for IDs that cannot be generated. It
    also does so for two choices with the same tokens, and for too many tokens in all.
    """
    found: dict[tuple[int, ...], EncodedChoice] = {}
    for number, each in enumerate(given):
        try:
            if isinstance(each, str):
                choice = EncodedChoice(
                    each, tuple(tokenizer.encode(each, add_bos=False, special_tokens=special_tokens))
                )
            else:
                choice = EncodedChoice("", tuple(each))
            _check_ids(choice.token_ids, manifest)
            if not isinstance(each, str):
                choice = EncodedChoice(tokenizer.decode(each), tuple(each))
            if not choice.token_ids or choice.token_ids in found:
                raise BadInputError(
                    "no tokens" if not choice.token_ids else "the same tokens as an earlier choice",
                    expected="choices with different tokens, at least one each",
                    remedy="correct or remove it",
                )
        except BadInputError as error:
            raise_if_from_handler(error)
            received = f"choice {number}, {shown(each)}: {error.received}"
            raise ChoicesRefusedError(received, expected=error.expected, remedy=error.remedy) from error
        found[choice.token_ids] = choice
    beginnings = {ids[:place] for ids in found for place in range(len(ids))}
    if len(beginnings) > MAX_WINDOWS:
        raise ChoicesRefusedError(
            f"choices with {len(beginnings)} distinct beginnings, each computed in a window of its own",
            expected=f"at most {MAX_WINDOWS}, which is the number of tokens of choices that share no beginning",
            remedy="send fewer or shorter choices",
        )
    return tuple(found.values())


def _check_ids(ids: tuple[int, ...], manifest: Manifest) -> None:
    vocabulary, mask = manifest.dimensions.vocab_size, manifest.special_tokens.mask
    if not all(id < vocabulary and id != mask for id in ids):
        raise BadInputError(
            "IDs that cannot be generated",
            expected=f"IDs from 0 to {vocabulary - 1}, other than the mask token {mask}",
            remedy="correct it",
        )
