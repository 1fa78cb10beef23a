"""Any body is either parsed within the limits or rejected with the name of a field."""

from dataclasses import fields
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lopa.runtime.errors import BadInputError, FieldError
from lopa.runtime.generation_config import GenerationConfig, resolve
from lopa.serve.openai.body_options import CHATS, COMPLETIONS
from lopa.serve.openai.request import request_from_body
from lopa.serve.serve_limits import ServeLimits

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


@settings(max_examples=100, deadline=None)
@given(
    endpoint=st.sampled_from([CHATS, COMPLETIONS]),
    changes=st.dictionaries(st.sampled_from(NAMES), VALUES, max_size=3),
    lopa_fields=OURS | VALUES,
)
def test_any_body_is_parsed_or_rejected(endpoint: str, changes: dict[str, Any], lopa_fields: Any) -> None:
    try:
        checked = request_from_body({**usual(endpoint), **changes, "lopa": lopa_fields}, endpoint, LIMITS)
    except FieldError:
        return
    assert 1 <= checked.copies * max(1, len(checked.prompts)) <= 4
    assert checked.deadline is not None
    assert 0 < checked.deadline <= 5
    try:
        config = GenerationConfig(**checked.options.values)
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
def test_limits_apply_to_missing_values(branches: int | None) -> None:
    lopa_fields = {} if branches is None else {"branches": branches}
    checked = request_from_body({**usual(CHATS), "lopa": lopa_fields}, CHATS, LIMITS)
    assert checked.options.values == {"max_new_tokens": 100, "branches": branches or 1}
    for too_many in ("auto", 4):
        with pytest.raises(FieldError) as caught:
            request_from_body({**usual(CHATS), "lopa": {"branches": too_many}}, CHATS, LIMITS)
        assert caught.value.param == "lopa.branches"


def test_null_means_not_given() -> None:
    """Check that null means not given: limits apply."""
    lopa_fields = {"max_new_tokens": None, "branches": None, "temperature": None, "seed": None}
    checked = request_from_body({**usual(CHATS), "lopa": lopa_fields}, CHATS, LIMITS)
    assert checked.options.values == {"max_new_tokens": 100, "branches": 1}
