"""Token ids that end an answer: where it ends, what it keeps, and what they cannot be combined with."""

from typing import Any

import pytest

from lopa.runtime import Decoder
from lopa.runtime.errors import BadInputError
from lopa.runtime.text.text_with_holes import text_with_holes

PROMPT = "Question: There are 9 baskets at home, and each holds 6 candies. How many candies are there now?\nAnswer:"


@pytest.mark.parametrize("options", [{}, {"strategy": "lopa", "branches": 3}, {"stop_at_eos": False}], ids=str)
def test_an_answer_ends_with_the_first_of_the_tokens(decoder: Decoder, options: dict[str, Any]) -> None:
    """Without dropped rows the answer is the one without the option, up to the token."""
    whole = decoder.generate(PROMPT, max_new_tokens=32, drop_after_eos=False, **options)
    for token in (whole.token_ids[5], whole.token_ids[12]):
        end = whole.token_ids.index(token) + 1
        found = decoder.generate(
            PROMPT, max_new_tokens=32, drop_after_eos=False, stop_token_ids=[token, whole.token_ids[end + 3]], **options
        )
        assert found.token_ids == whole.token_ids[:end]
        assert found.stop_reason == "eos"
        assert whole.text.startswith(found.text)
    dropped = decoder.generate(PROMPT, max_new_tokens=32, stop_token_ids=[token], **options)
    assert dropped.token_ids[-1] == token
    assert token not in dropped.token_ids[:-1]


def test_what_they_cannot_be_combined_with(decoder: Decoder, llada: Decoder) -> None:
    for other in ({"regex": "[0-9]+"}, {"choices": ["a", "b"]}, {"reference": True}):
        with pytest.raises(BadInputError, match=f"cannot combine stop_token_ids with {next(iter(other))}"):
            decoder.generate(PROMPT, stop_token_ids=[5], **other)
    with pytest.raises(BadInputError, match="cannot combine holes with stop_token_ids"):
        llada.generate(text_with_holes("a <hole:4> b"), stop_token_ids=[5])
    with pytest.raises(BadInputError, match="stop_token_ids with the token 1024"):
        decoder.generate(PROMPT, stop_token_ids=[5, 1024])
    for wrong in (5, "5", [-1], [True], [2.5], list(range(65))):
        with pytest.raises(BadInputError, match="stop_token_ids"):
            decoder.config(stop_token_ids=wrong)
