"""Whatever a body holds, it is either understood within the limits or refused with the name of a field."""

from dataclasses import fields
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lopa.runtime.errors import BadInputError
from lopa.runtime.generation_config import GenerationConfig, resolve
from lopa.serve.limits import ServeLimits
from lopa.serve.openai.field_error import FieldError
from lopa.serve.openai.options import CHATS, COMPLETIONS
from lopa.serve.openai.request import request_of_body

LIMITS = ServeLimits(max_tokens=100, max_branches=3, max_seconds=5.0, max_choices=4)
SCALARS = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=5)
VALUES = st.recursive(
    SCALARS,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=6,
)
OPTIONS = sorted(option.name for option in fields(GenerationConfig))
NAMES = [
    *("model", "messages", "prompt", "n", "stream", "stream_options", "stop", "seed", "max_tokens", "logprobs"),
    *("max_completion_tokens", "temperature", "top_p", "tools", "response_format", "echo", "new"),
]
OURS = st.dictionaries(st.sampled_from([*OPTIONS, "deadline", "new"]), VALUES, max_size=3)


def usual(endpoint: str) -> dict[str, Any]:
    if endpoint == CHATS:
        return {"model": "m", "messages": [{"role": "user", "content": "x"}]}
    return {"model": "m", "prompt": "x"}


@settings(max_examples=300, deadline=None)
@given(
    endpoint=st.sampled_from([CHATS, COMPLETIONS]),
    changes=st.dictionaries(st.sampled_from(NAMES), VALUES, max_size=3),
    ours=OURS | VALUES,
)
def test_any_body_is_understood_or_refused(endpoint: str, changes: dict[str, Any], ours: Any) -> None:
    try:
        asked = request_of_body({**usual(endpoint), **changes, "lopa": ours}, endpoint, LIMITS)
    except FieldError:
        return
    assert 1 <= asked.copies * max(1, len(asked.prompts)) <= 4
    assert asked.deadline is not None
    assert 0 < asked.deadline <= 5
    try:
        config = GenerationConfig(**asked.options.values)
    except BadInputError:
        return
    assert config.max_new_tokens is not None
    assert config.max_new_tokens <= 100
    assert config.time_limit is None or config.time_limit <= 5
    try:
        plan = resolve(config)
    except BadInputError:
        return
    assert plan.branches <= 3


@pytest.mark.parametrize("branches", [None, 1, 3])
def test_a_ceiling_is_kept_also_where_nothing_is_asked_for(branches: int | None) -> None:
    ours = {} if branches is None else {"branches": branches}
    asked = request_of_body({**usual(CHATS), "lopa": ours}, CHATS, LIMITS)
    assert asked.options.values == {"max_new_tokens": 100, "branches": branches or 1}
    for wrong in ("auto", 4):
        with pytest.raises(FieldError) as refused:
            request_of_body({**usual(CHATS), "lopa": {"branches": wrong}}, CHATS, LIMITS)
        assert refused.value.param == "lopa.branches"


def test_null_is_what_was_not_given() -> None:
    """A ceiling holds for it; a seed that is null is drawn."""
    ours = {"max_new_tokens": None, "branches": None, "temperature": None, "seed": None}
    asked = request_of_body({**usual(CHATS), "lopa": ours}, CHATS, LIMITS)
    assert asked.options.values == {"max_new_tokens": 100, "branches": 1, "seed": None}


def test_without_ceilings_there_are_the_usual_values() -> None:
    asked = request_of_body(usual(COMPLETIONS), COMPLETIONS, ServeLimits())
    assert asked.options.values == {"max_new_tokens": 256}
    assert (asked.deadline, asked.copies, asked.stream, asked.prompts) == (None, 1, None, ("x",))
