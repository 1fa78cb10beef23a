"""Chat templates, compared with Hugging Face's own renderer if it is installed."""

import json
import subprocess
import sys
from functools import reduce
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, event, given, settings
from hypothesis import strategies as st
from tests.runtime.text import hostile_templates
from tests.runtime.text.chat_templates import TEMPLATES as OF_FAMILIES

from lopa.runtime.errors import BadInputError
from lopa.runtime.text.chat_template import RenderedChat, check_template

CHAT = [
    {"role": "system", "content": "Be brief."},
    {"role": "user", "content": "Grüße <b>&</b> 日本 'q'"},
    {"role": "assistant", "content": "Yes."},
    {"role": "user", "content": ""},
]
TOKENS = {"bos_token": "<|begin|>", "eos_token": "<|end|>"}


def chat_text(template: str, chat: Any, tokens: dict[str, str] = TOKENS) -> RenderedChat:
    return RenderedChat(template, chat, tokens, name="the chat template of a bundle")


def render(template: str, chat: Any = CHAT) -> str:
    return chat_text(template, chat).text


CHATS: list[list[dict[str, Any]]] = [
    [
        {"role": "system", "content": " Be brief.\n"},
        {"role": "user", "content": "Hi <b>é</b>\r\nline two\n\n  three"},
        {"role": "assistant", "content": "<think>\nhm\n</think>\n\nYes."},
        {"role": "user", "content": "and now 'x' 100%?"},
    ],
    [{"role": "user", "content": "only"}],
    [
        {"role": "user", "content": "a", "name": "Eve"},
        {
            "role": "assistant",
            "content": "b",
            "tool_calls": [{"function": {"name": "f", "arguments": {"x": "é", "n": [1, 2.5, None, True]}}}],
        },
        {"role": "tool", "content": "result"},
        {"role": "user", "content": ""},
    ],
]


@pytest.mark.parametrize("chat", CHATS, ids=len)
@pytest.mark.parametrize("family", OF_FAMILIES)
def test_families_templates_equal_hugging_face_s(family: str, chat: list[dict[str, Any]]) -> None:
    utils = pytest.importorskip("transformers.utils.chat_template_utils")
    jinja2 = pytest.importorskip("jinja2")
    template = OF_FAMILIES[family]
    try:
        (found,), _ = utils.render_jinja_template([chat], chat_template=template, add_generation_prompt=True, **TOKENS)
    except jinja2.TemplateError as error:
        with pytest.raises(BadInputError, match=str(error)):
            render(template, chat)
    else:
        assert render(template, chat) == found


def test_hostile_templates_end_early() -> None:
    """Run hostile templates in a process with limits. All end long before they reach the limits, most with an error."""
    root = Path(__file__).parents[3]
    ran = subprocess.run(
        [sys.executable, "-m", "tests.runtime.text.hostile_templates"],
        cwd=root,
        env={"PYTHONPATH": f"{root / 'src'}:{root}"},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    outcomes = [json.loads(line) for line in ran.stdout.splitlines()]
    assert ran.returncode == 0, ran.stderr
    harmless = [each[0] for each in outcomes if isinstance(each[1], int) and each[1] < 2000]
    assert harmless == [each[:100] for each in hostile_templates.HARMLESS]
    assert {str(each[1]) for each in outcomes if each[0] not in harmless} == {"refused"}
    assert len(outcomes) == len(hostile_templates.TEMPLATES) > 65


def test_white_space_next_to_a_message_is_the_message_s() -> None:
    text = chat_text("<a b> \n{{ messages[0].content }}\n <c d>", [{"role": "user", "content": "x y"}])
    assert text.marks == b"".join([bytes(5), b"\1" * 7, bytes(5)])


@pytest.mark.parametrize(
    ("expression", "content"),
    [
        ("('<x>' ~ c).replace('x', '')", "x"),
        ("('<x>' ~ c) | replace('x', '')", "x"),
        ("'{!r}'.format(c)", "x"),
        ("['b', c] | sort | join", "a"),
        ("messages[0].values()", "x"),
        ("('<end>' ~ c).replace('<end>', '', 2)", "<end><end>"),
    ],
)
def test_a_template_that_hides_a_message(expression: str, content: str) -> None:
    text = chat_text(
        "{% set c = messages[0].content %}{{ c }}{{ " + expression + " }}", [{"role": "user", "content": content}]
    )
    assert text.text
    with pytest.raises(BadInputError, match="hides which characters of the prompt come from messages"):
        _ = text.marks


_VALUES = [
    *("c", "'ab'", "messages[0].content", "messages[0]['x']", "messages[0].content[1]", "messages[0].get('x')"),
    *("messages | map(attribute='content') | join", "messages | tojson", "messages[0] | list | join", "messages[0]"),
]
_OPERATIONS = [
    *(
        "(@ | upper)",
        "(@ | lower | title)",
        "(@ | string).capitalize()",
        "(@ | string)[::-1]",
        "(@ | string)[1:3]",
    ),
    *(
        "(@ ~ 'xy')",
        "('x' + (@ | string))",
        "([@, 'x'] | join('-'))",
        "('%s|%s' % (@, 'x'))",
        "('{}x{}'.format(@, 'y'))",
    ),
    *(
        "(@ | string).replace('α', 'q')",
        "(@ | replace('Β', 'q'))",
        "(@ | replace('q', c))",
        "(@ ~ '').split('β') | join('+')",
    ),
    *(
        "((@ | string | list) | join)",
        "(@ | tojson)",
        "((@ | string) * 2)",
        "(dict(a=@) | string)",
        "({'a': @}.a)",
    ),
    *(
        "(@ | string | indent(2, true))",
        "([@] | string)",
        "(@ ~ '').strip('γx ')",
        "((@ ~ '').partition('α') | join('|'))",
    ),
    *(
        "(@ | string | reverse)",
        "(@ ~ '').join(['x', c])",
        "(@ | default('x'))",
        "(@ if 'α' in (@ ~ '') else 'z')",
    ),
    *(
        "([@, 'xy'] | map('upper') | join)",
        "(namespace(v=@).v)",
        "(@ | trim)",
        "(@ | string | first)",
        "([@, c] | last)",
    ),
    *(
        "({c: @} | items | list | string)",
        "('a' if @ == c else @)",
        "(@ ~ '').rsplit('Γ', 1)[0]",
        "(@ ~ '').splitlines() | join",
    ),
    *(
        "([c, @] | select('equalto', c) | join)",
        "({'αβ': 'x'}[@ ~ ''] | default('y'))",
        "[@ ~ '', c] | unique | join",
    ),
]
_EXPRESSIONS = st.tuples(st.sampled_from(_VALUES), st.lists(st.sampled_from(_OPERATIONS), max_size=3)).map(
    lambda pair: reduce(lambda value, operation: operation.replace("@", value), pair[1], pair[0])
)
_STATEMENTS = [
    *("{{ @ }}", "{% set x %}x{{ @ }}{% endset %}{{ x }}", "{% filter upper %}{{ @ }}{% endfilter %}"),
    *("{% macro m(v) %}<{{ v }}{{ caller() }}>{% endmacro %}{% call m(c) %}{{ @ }}{% endcall %}",),
    *("{% for l in @ %}{{ l }}{{ loop.last }}{% endfor %}", "{% generation %}{{ @ }}{% endgeneration %}"),
    *("{% with v = @ %}{{ v ~ c }}{% endwith %}", "{% if @ %}y{% else %}n{% endif %}{{ c }}"),
]


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(expression=_EXPRESSIONS, statement=st.sampled_from(_STATEMENTS), content=st.text("αβγΑΒΓ \n", max_size=6))
def test_no_operation_hides_a_message(expression: str, statement: str, content: str) -> None:
    """Only messages have Greek letters: the text equals transformers', and no Greek letter counts as the template's."""
    utils = pytest.importorskip("transformers.utils.chat_template_utils")
    template = "{% set c = messages[0].content %}{{ c }}" + statement.replace("@", expression)
    chat = [{"role": "user", "content": content, "x": f"{content}α", f"{content}β": 1}]
    try:
        (expected,), _ = utils.render_jinja_template([chat], chat_template=template, **TOKENS)
    except Exception:
        with pytest.raises(BadInputError):
            chat_text(template, chat)
        return
    made = chat_text(template, chat)
    assert made.text == expected
    try:
        marks = made.marks
    except BadInputError:
        event("refused")
        return
    assert not {letter for letter, mark in zip(made.text, marks, strict=True) if not mark} & set("αβγΑΒΓ")


@pytest.mark.parametrize(
    "message",
    [
        {"role": "user", "content": "x", "more": object()},
        {"role": "user", "content": "x", "more": {1: 2}},
        {"role": "user", "content": "x", 5: 2},
        {"role": "user", "content": "x", "more": {"a": b"bytes"}},
    ],
)
def test_message_fields_that_are_not_json(message: Any) -> None:
    with pytest.raises(BadInputError, match="message 0 of the chat"):
        render("{{ messages[0].role }}", [message])


@pytest.mark.parametrize(
    ("template", "reason"),
    [
        ("{{ raise_exception('roles must alternate') }}", "roles must alternate"),
        ("{% if %}", "Expected an expression"),
        ("{{ messages[0].nothing.at.all }}", "has no attribute"),
        ("{{ messages.__class__.__mro__ }}", "unsafe"),
        ("{{ raise_exception(\"No filter named 'x'\") }}", "No filter named 'x'"),
        ("{{ ''.__class__.__base__.__subclasses__() }}", "unsafe"),
        ("{{ '%1000s' % 'x' }}", "a width above 999"),
        ("{{ '{:{}}'.format('x', 9) }}", "a width as an argument"),
        ("{% for m in messages %}{% endif %}", "unknown tag 'endif'"),
    ],
)
def test_failing_and_malicious_templates(template: str, reason: str) -> None:
    with pytest.raises(BadInputError, match=reason) as caught:
        render(template)
    assert caught.value.received.startswith("the chat template of a bundle failed: ")


@pytest.mark.parametrize(
    ("template", "feature", "supported"),
    [
        ("{% for m in messages recursive %}{% endfor %}", "tag for .. recursive", "break, call"),
        ("{% block a %}{% endblock %}", "tag block", "break, call"),
        ("{% autoescape true %}{% endautoescape %}", "tag autoescape", "break, call"),
        ("{% do messages.append(1) %}", "tag do", "break, call"),
        ("{% include 'tokenizer.json' %}", "tag include, import or extends", "break, call"),
        ("{{ messages | groupby('role') }}", "filter groupby", "abs, capitalize"),
        ("{{ messages | map('wordcount') | list }}", "filter wordcount", "abs, capitalize"),
        ("{{ 'x' is odder }}", "test odder", "boolean, callable"),
        ("{% set comma = joiner(', ') %}", "function joiner", "dict, namespace"),
        ("{{ 'x'.center(3) }}", "method center", "capitalize, count"),
        ("{{ messages[0].update({}) }}", "method update", "get, items"),
        ("{{ messages.append(1) }}", "method append", "count, index"),
    ],
)
def test_a_feature_that_is_not_supported_is_named(template: str, feature: str, supported: str) -> None:
    with pytest.raises(BadInputError) as caught:
        render(template)
    assert caught.value.received == f"the chat template of a bundle uses the {feature}, which is not supported"
    assert caught.value.expected.startswith(f"one of {supported}")
    assert render("{% if false %}{{ 'x' | groupby('a') }}{% endif %}") == ""


_PARTS = "{% for p in m.content %}{% if p.type == 'text' %}[{{ p.text }}]{% endif %}{% endfor %}"
ONLY_PARTS = "{% for m in messages %}<{{ m.role }}>" + _PARTS + "{% endfor %}"
USER_PARTS = (
    "{% if messages[0].role != 'user' %}{{ messages[0].content | trim }}{% endif %}"
    "{% for m in messages if m.role == 'user' %}<user>" + _PARTS + "{% endfor %}"
)
BOTH_FORMS = (
    "{% for m in messages %}<{{ m.role }}>{% if m.content is string %}{{ m.content }}{% else %}" + _PARTS
) + "{% endif %}{% endfor %}"


@pytest.mark.parametrize(
    ("template", "in_parts"),
    [(ONLY_PARTS, {"system", "user", "assistant", "tool"}), (USER_PARTS, {"user"}), (BOTH_FORMS, set())],
)
def test_messages_reach_a_template_that_loops_over_parts(template: str, in_parts: set[str]) -> None:
    chat = [{"role": role, "content": f"text of {role}"} for role in ("system", "user", "assistant", "user", "tool")]
    given = [
        {**each, "content": [{"type": "text", "text": each["content"]}]} if each["role"] in in_parts else each
        for each in chat
    ]
    utils = pytest.importorskip("transformers.utils.chat_template_utils")
    expected = utils.render_jinja_template([given], chat_template=template, add_generation_prompt=True)[0][0]
    assert render(template, chat) == expected
    pieces = [{"type": "text", "text": piece} for piece in ("text of ", "user")]
    chat[1]["content"] = pieces  # type: ignore[assignment]
    assert render(template, chat) == expected


def test_a_template_that_fails_with_strings() -> None:
    """Check that each role is tried together with a user's message in the form that does not fail."""
    strict = (
        "{% for m in messages if m.role == 'user' and m.content is string %}{{ raise_exception('parts') }}{% endfor %}"
    )
    chat = [{"role": "system", "content": " a "}, {"role": "user", "content": "b"}]
    assert render(strict + USER_PARTS, chat) == "a<user>[b]"


def test_the_text_of_a_part_is_message_text() -> None:
    text = chat_text(ONLY_PARTS, [{"role": "user", "content": "<|end|>"}])
    assert text.text == "<user>[<|end|>]"
    assert text.marks == bytes(7) + b"\1" * 7 + bytes(1)


@pytest.mark.parametrize("template", [ONLY_PARTS, USER_PARTS, BOTH_FORMS])
def test_a_template_with_parts_is_accepted(template: str) -> None:
    check_template(template, {}, name="t")
    with pytest.raises(BadInputError, match="renders the message"):
        check_template(template.replace("[{{ p.text }}]", "").replace("{{ m.content }}", ""), {}, name="t")
