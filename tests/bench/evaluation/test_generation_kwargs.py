"""Translation of lm-eval's generation_kwargs; tests/clients checks the same against lm-eval itself."""

from typing import Any

import pytest

from lopa.bench.evaluation.generation_kwargs import options_from_kwargs
from lopa.runtime.errors import BadInputError


@pytest.mark.parametrize(
    ("kwargs", "expected"),
    [
        ({}, {"max_new_tokens": 99, "temperature": 0.0, "stop": ()}),
        ({"until": "\n\n"}, {"stop": ("\n\n",)}),
        ({"until": ["a", "", "b", "a"]}, {"stop": ("a", "b")}),
        ({"until": None}, {"stop": ()}),
        ({"max_gen_toks": 7, "max_tokens": 8}, {"max_new_tokens": 7}),
        ({"max_completion_tokens": 8}, {"max_new_tokens": 8}),
        ({"max_gen_toks": None, "max_new_tokens": 9}, {"max_new_tokens": 9}),
        ({"temperature": 0.7}, {"temperature": 0.7}),
        ({"temperature": 0.7, "do_sample": True}, {"temperature": 0.7}),
        ({"temperature": 0.7, "do_sample": False}, {"temperature": 0.0}),
        ({"do_sample": True}, {"temperature": 0.0}),
        ({"top_p": 0.9, "seed": 4, "top_k": None}, {"top_p": 0.9, "seed": 4}),
        ({"lopa": {"branches": 4}, "max_gen_toks": 7}, {"branches": 4, "max_new_tokens": 7}),
    ],
)
def test_options(kwargs: dict[str, Any], expected: dict[str, Any]) -> None:
    found = options_from_kwargs(kwargs, default_tokens=99)
    assert expected.items() <= found.items()
    assert set(found) == {"max_new_tokens", "temperature", "stop", *expected}


@pytest.mark.parametrize(
    ("kwargs", "named"), [({"num_beams": 2}, "num_beams"), ({"lopa": 4}, "lopa 4"), ({"until": [1]}, "until")]
)
def test_unknown_and_malformed_fields_are_rejected(kwargs: dict[str, Any], named: str) -> None:
    with pytest.raises(BadInputError, match=named):
        options_from_kwargs(kwargs, default_tokens=99)
