"""Results of tools in a chat, in the order of their calls.

Most chat templates write results without the ids of their calls, so that the model matches them by order.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from lopa.runtime.checked_values import shown
from lopa.runtime.errors import BadInputError

_TOOL = "tool"


def order_tool_results(messages: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return the messages with the results behind a message in the order of its calls.

    Results without a `tool_call_id` stay where they are. Raises BadInputError for a result whose id belongs to no call
    of the assistant's message before it, and for a second result of one call.
    """
    ordered: list[dict[str, Any]] = []
    position = 0
    while position < len(messages):
        end = position
        while end < len(messages) and messages[end].get("role") == _TOOL:
            end += 1
        if end > position:
            before = messages[position - 1] if position else {}
            ordered += _in_order(messages[position:end], _call_ids(before), position)
            position = end
        else:
            ordered.append(dict(messages[position]))
            position += 1
    return ordered


def _call_ids(message: Mapping[str, Any]) -> list[Any]:
    calls = message.get("tool_calls")
    return [each.get("id") for each in calls if isinstance(each, Mapping)] if isinstance(calls, list) else []


def _in_order(results: Sequence[Mapping[str, Any]], ids: list[Any], number: int) -> list[dict[str, Any]]:
    places: dict[int, dict[str, Any]] = {}
    for offset, result in enumerate(results):
        name = result.get("tool_call_id")
        if name is None:
            return [dict(each) for each in results]
        # Some clients give equal ids to several calls of a message. Their results then keep their order.
        free = [place for place, each in enumerate(ids) if each == name and place not in places]
        if not free:
            raise BadInputError(
                f"message {number + offset} (counted from 0) has the tool_call_id {shown(name)}",
                expected="the id of a call in the assistant's message before it, with one result for each call",
                remedy="send that message too, or correct the id",
            )
        places[free[0]] = dict(result)
    return [places[place] for place in sorted(places)]
