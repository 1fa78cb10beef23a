"""Results of tools come in the order of their calls."""

from typing import Any

import pytest

from lopa.runtime.errors import BadInputError
from lopa.serve.openai.prompts import messages_from_field, order_tool_results

_USER: dict[str, Any] = {"role": "user", "content": "x"}


def _calls(*ids: str) -> dict[str, Any]:
    return {"role": "assistant", "content": "", "tool_calls": [{"id": each, "function": {}} for each in ids]}


def _result(name: str | None, content: str) -> dict[str, Any]:
    return {"role": "tool", "content": content} | ({} if name is None else {"tool_call_id": name})


@pytest.mark.parametrize(
    ("results", "expected"),
    [
        ([("a", "1"), ("b", "2"), ("c", "3")], "123"),
        ([("c", "3"), ("a", "1"), ("b", "2")], "123"),
        ([("c", "3"), ("a", "1")], "13"),
        ([(None, "3"), (None, "1")], "31"),
        ([], ""),
    ],
)
def test_results_are_ordered(results: list[tuple[str | None, str]], expected: str) -> None:
    messages = [
        _USER,
        _calls("a", "b", "c"),
        *(_result(*each) for each in results),
        _USER,
        _calls("z"),
        _result("z", "9"),
    ]
    ordered = messages_from_field(messages)
    assert "".join(each["content"] for each in ordered if each["role"] == "tool") == f"{expected}9"
    assert [each["role"] for each in ordered] == [each["role"] for each in messages]


def test_equal_ids_keep_their_order() -> None:
    messages = [_calls("a", "a"), _result("a", "1"), _result("a", "2")]
    assert order_tool_results(messages) == messages


@pytest.mark.parametrize(
    "messages",
    [
        [_USER, _result("a", "1")],
        [_calls("a"), _USER, _result("a", "1")],
        [_calls("a"), _result("b", "1")],
        [_calls("a"), _result("a", "1"), _result("a", "2")],
        [{"role": "assistant", "tool_calls": "x"}, _result("a", "1")],
        [_result("a", "1")],
    ],
)
def test_results_of_no_call_are_refused(messages: list[dict[str, Any]]) -> None:
    with pytest.raises(BadInputError, match="tool_call_id"):
        order_tool_results(messages)
