"""Prompts of lopa-web are those of transformers, and features of templates that differ are rejected by name."""

import random
from collections.abc import Iterator
from typing import Any

import pytest
from tests.chat_bundles import HERMES
from tests.runtime.text.chat_templates import TEMPLATES
from tests.web.installed import no_web, text_answers
from transformers.utils.chat_template_utils import _compile_jinja_template

pytestmark = [pytest.mark.web, no_web]
STYLES = {
    **TEMPLATES,
    "hermes": HERMES,
    "text of values": "{{ true }} {{ none }} {{ 1.5 }} {{ 4 / 2 }} {{ missing }} {{ 'a' ~ true ~ none ~ 3 }} "
    "{{ [1, true, none, 'x'] | join('-') }} {{ 3 | string }}{{ messages[0].content }}",
    "equality": "{{ messages[0].missing == none }} {{ '1' == 1 }} {{ true == 1 }} {{ '' != 0 }} {{ none == none }}"
    "{{ messages[0].content == messages[-1].content }}",
    "scope": "{% for m in messages %}{% if loop.first %}{% set x = 1 %}{% endif %}{{ x is defined }}{% endfor %}"
    "{{ x is defined }}{% for i in range(4, 0, -2) %}{{ i }}{% else %}none{% endfor %}{{ range(3) | length }}",
    "loop controls": "{% for m in messages %}{% for i in range(4) %}{{ i }};{% if i == 1 %}a{% continue %}{% endif %}"
    "{% if i == 2 %}b{% break %}{% endif %}c{% endfor %}{{ m.role }}"
    "{% if loop.last %}{% break %}{% endif %}\n{% endfor %}",
    "strip": "{% for m in messages %}{{ m.content.strip() }}|{{ m.content.lstrip('\\n a') }}|{{ m.content | trim }}|"
    "{{ m.content.rstrip(' >') }}|{{ m.content | length }}|{{ m.content.strip('') }}\r\n{% endfor %}",
    "roles": "{% for m in messages %}{{ m.role | capitalize }}{{ m.role.title() }}{{ '12' | int + 1 }}{{ m.title }}"
    "{{ {'a': [1, 2], 'b': {}} | tojson(indent=2) | indent(3) }}{% endfor %}"
    "{{ messages | map(attribute='role') | unique | join }}",
    "time": "{{ strftime_now('%d %b %Y %B %m') }}{{ messages[0].content }}",
}
WORDS = (
    *("hello", "  lead", "trail \n", "\n\nx\n", "<think>\n a \n</think>\n\n  indented", "</think>", "\ufeffa\ufeff"),
    *("\x85b\x85", "\x1cc", "🍎🍎", "", "a\r\nb", "{{ x }}", "'q' \"d\" <b> & \u2028"),
)


def chats(number: int) -> Iterator[list[dict[str, Any]]]:
    """Yield chats of several turns, with calls of tools and their results."""
    rng = random.Random(3)
    for _ in range(number):
        messages: list[dict[str, Any]] = []
        if rng.random() < 0.3:
            messages.append({"role": "system", "content": rng.choice(WORDS)})
        for _ in range(rng.randrange(1, 4)):
            messages.append({"role": "user", "content": "".join(rng.choices(WORDS, k=2))})
            answer: dict[str, Any] = {"role": "assistant", "content": "".join(rng.choices(WORDS, k=2))}
            if rng.random() < 0.2:
                answer["reasoning_content"] = rng.choice(WORDS)
            messages.append(answer)
            if rng.random() < 0.3:
                arguments = {"a": rng.choice(WORDS), "b": [1, 2.5, True, None], "n": -3}
                answer["tool_calls"] = [{"type": "function", "function": {"name": "f", "arguments": arguments}}]
                messages.append({"role": "tool", "content": rng.choice(WORDS)})
        yield [*messages, {"role": "user", "content": f"{rng.choice(WORDS)}?"}]


@pytest.mark.parametrize("style", STYLES)
def test_prompts_are_those_of_transformers(style: str) -> None:
    """Spaces of earlier answers stay. A template that rejects a chat does so too."""
    given, tokens = list(chats(60)), {"bos_token": "<s>", "eos_token": "</s>"}
    compiled = _compile_jinja_template(STYLES[style])
    names: dict[str, Any] = {"tools": None, "documents": None, "add_generation_prompt": True, **tokens}
    found = text_answers(*({"template": STYLES[style], "messages": each, "settings": tokens} for each in given))
    equal = 0
    for messages, answer in zip(given, found, strict=True):
        try:
            expected = compiled.render(messages=messages, **names)
        except Exception:
            assert "the chat template of bundle failed" in answer["error"]
            continue
        if style == "macros":
            assert "the chat template of bundle failed" in answer["error"]
            continue
        assert answer == {"text": expected}, messages
        equal += 1
    assert equal > 20 or style == "macros"


@pytest.mark.parametrize(
    ("template", "named"),
    [
        ("{{ messages }}", "a text of ArrayValue"),
        ("{{ messages[0].content.title() }}", 'title of "a b"'),
        ("{{ messages[0].content | int }}", 'int of "a b"'),
        ("{{ 'a\u2028b' | indent }}", 'indent of "a\u2028b"'),
        ("{{ messages[0].a.b }}", ".b of UndefinedValue"),
        ("{{ messages == messages }}", "ArrayValue == ArrayValue"),
        ("{{ -7 % 3 }}", "% below 0"),
        ("{{ 'a' + 1 }}", "StringValue + IntegerValue"),
        ("{{ strftime_now('%y') }}", "%y"),
        ("{{ raise_exception('only one turn') }}", "failed: only one turn\n"),
    ],
)
def test_features_that_differ_are_rejected_by_name(template: str, named: str) -> None:
    (found,) = text_answers({"template": template, "messages": [{"role": "user", "content": "a b"}], "settings": {}})
    assert named in found["error"]
