"""Prompts of lopa-web are those of transformers, and features of templates that it lacks are rejected by name."""

import json
import os
import random
import time
from collections.abc import Iterator
from contextlib import suppress
from functools import lru_cache
from pathlib import Path
from typing import Any

import pytest
from tests.chat_bundles import HERMES
from tests.runtime.text.chat_templates import TEMPLATES
from tests.runtime.text.hostile_templates import TEMPLATES as HOSTILE
from tests.web.installed import no_web, text_answers
from tests.web.random_templates import RandomTemplate, random_chat
from transformers.utils.chat_template_utils import _compile_jinja_template

import lopa.tiny
from lopa.runtime.errors import BadInputError
from lopa.runtime.text.chat_template import RenderedChat, _template_text, is_markup
from lopa.runtime.text.tokenizer import Tokenizer
from lopa.runtime.text.tokenizer_text import tokenizer_from_text
from lopa.tiny import CHECKPOINT

pytestmark = [pytest.mark.web, no_web]
RANDOM = int(os.environ.get("LOPA_WEB_TEMPLATES", "400"))
"""Random templates."""
ENVIRONMENT = _compile_jinja_template("").environment.overlay()
ENVIRONMENT.filters = {**ENVIRONMENT.filters, "safe": ENVIRONMENT.filters["string"]}
"""transformers' environment. As in lopa.runtime.template, no text escapes another one."""
TOKENS = {"bos_token": "<s>", "eos_token": "</s>"}
STYLES = {
    **TEMPLATES,
    "hermes": HERMES,
    "tiny": Path(lopa.tiny.__file__).with_name("chat_template.jinja").read_text(encoding="utf-8"),
    "text of values": "{{ true }} {{ none }} {{ 1.5 }} {{ 4 / 2 }} {{ missing }} {{ 'a' ~ true ~ none ~ 3 }} "
    "{{ [1, true, none, 'x'] | join('-') }} {{ 3 | string }}{{ messages[0].content }}",
    "equality": "{{ messages[0].missing == none }} {{ '1' == 1 }} {{ true == 1 }} {{ '' != 0 }} {{ none == none }}"
    "{{ messages[0].content == messages[-1].content }}",
    "scope": "{% for m in messages %}{% if loop.first %}{% set x = 1 %}{% endif %}{{ x is defined }}{% endfor %}"
    "{{ x is defined }}{% for i in range(4, 0, -2) %}{{ i }}{% else %}none{% endfor %}{{ range(3) | length }}",
    "loop controls": "{% for m in messages %}{% for i in range(4) %}{{ i }};{% if i == 1 %}a{% continue %}{% endif %}"
    "{% if i == 2 %}b{% break %}{% endif %}c{% endfor %}{{ m.role }}"
    "{% if loop.last %}{% break %}{% endif %}\n{% else %}none{% endfor %}"
    "{% for i in range(2) %}{% continue %}{% else %}none{% endfor %}",
    "strip": "{% for m in messages %}{{ m.content.strip() }}|{{ m.content.lstrip('\\n a') }}|{{ m.content | trim }}|"
    "{{ m.content.rstrip(' >') }}|{{ m.content | length }}|{{ m.content.strip('') }}\r\n{% endfor %}",
    "roles": "{% for m in messages %}{{ m.role | capitalize }}{{ m.role.title() }}{{ '12' | int + 1 }}{{ m.title }}"
    "{{ {'a': [1, 2], 'b': {}} | tojson(indent=2) | indent(3) }}{% endfor %}"
    "{{ messages | map(attribute='role') | unique | join }}",
    "time": "{{ strftime_now('%d %b %Y %B %m %A %y %-d %e') }}{{ messages[0].content }}",
    "methods": "{% for m in messages %}{{ m.content.rsplit('a', 1) | join('|') }}|{{ m.content.rsplit('aa') | length }}"
    "{{ m.content.partition('</think>')[2] }}|{{ m.content.partition('n') | length }}{{ 'aaa'.rsplit('aa', 1) }}"
    "{{ m.content.removeprefix('hel') }}|{{ m.content.removesuffix('a') }}|{{ m.content.splitlines() | join('|') }}"
    "{{ m | dictsort | map(attribute=0) | join }}{% with a = m.role, b = 2 %}{{ a * b }}{% endwith %}{{ a }}"
    "{{ '%s: %d%% %s' % (m.role, 3, none) }}{{ '<%s>' % m.content }}{{ {'B': 1, 'a': 2} | dictsort }}"
    "{{ 'one two-three x_y (z' | title }}{{ \"one2three don't\".title() }}"
    "{{ [{'x': 1}, 'é'] | map('tojson') | join }}{% endfor %}"
    "{{ ['のカ。한！', 'Я “q”', '🍎🥑☀️→'] }}",
    "defaults": "{% macro f(x=y, y=2) %}{{ x }}{{ y }}{% endmacro %}{{ f(y=3) }}{{ f() }}{{ f(1) }}{{ f(none, 4) }}"
    "{{ messages[0].content }}",
}
TOOLS = [
    {
        "type": "function",
        "function": {"name": "f", "parameters": {"properties": {"x": {"type": "string", "enum": ["é"]}}}},
    },
    {"name": "g", "limits": [1e-07, 2.5, -3, True, None]},
]
WORDS = (
    *("hello", "  lead", "trail \n", "\n\nx\n", "<think>\n a \n</think>\n\n  indented", "</think>", "\ufeffa\ufeff"),
    *("\x85b\x85", "\x1cc", "\x1fd\x1f", "🍎🍎", "", "a\r\nb", "{{ x }}", "'q' \"d\" <b> & \u2028"),
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
                arguments = {"a": rng.choice(WORDS), "b": [1, 2.5, True, None, 1e-07], "n": -3}
                answer["tool_calls"] = [{"type": "function", "function": {"name": "f", "arguments": arguments}}]
                messages.append({"role": "tool", "content": rng.choice(WORDS)})
        yield [*messages, {"role": "user", "content": f"{rng.choice(WORDS)}?"}]


compiled = lru_cache(ENVIRONMENT.from_string)


def rendered(template: str, messages: Any, tools: Any = None) -> str | None:
    """Return the prompt of transformers, or None if the template fails."""
    names: dict[str, Any] = {"documents": None, "add_generation_prompt": True, **TOKENS}
    try:
        found: str = compiled(template).render(messages=messages, tools=tools, **names)
    except Exception:
        return None
    return found


def answers(*cases: tuple[str, Any, Any]) -> list[dict[str, Any]]:
    """Return the answers of lopa-web to templates with messages and tools."""
    names = ("template", "messages", "tools")
    return text_answers(*({**dict(zip(names, case, strict=True)), "settings": TOKENS} for case in cases))


@pytest.mark.parametrize("tools", [None, TOOLS], ids=["without-tools", "with-tools"])
@pytest.mark.parametrize("style", STYLES)
def test_prompts_are_those_of_transformers(style: str, tools: Any) -> None:
    """Spaces of earlier answers stay. A template that rejects a chat does so too."""
    given = list(chats(60))
    equal = 0
    for messages, answer in zip(given, answers(*((STYLES[style], each, tools) for each in given)), strict=True):
        expected = rendered(STYLES[style], messages, tools)
        if style == "macros" or expected is None:
            assert ("the variable caller" if style == "macros" else "") in answer["error"]
            continue
        assert answer == {"text": expected}, messages
        equal += 1
    assert equal > 20 or style == "macros"


@pytest.mark.filterwarnings("ignore:invalid escape sequence", "ignore:.*perhaps you missed a comma")
def test_random_templates_are_equal_or_rejected() -> None:
    """A template that lopa-web renders has the text of transformers."""
    cases = []
    for seed in range(RANDOM):
        messages, tools = random_chat(random.Random(seed))
        cases.append((RandomTemplate(seed).text, messages, tools))
    equal = 0
    for case, answer in zip(cases, answers(*cases), strict=True):
        if "error" not in answer:
            assert answer["text"] == rendered(*case), case
            equal += 1
    assert equal > RANDOM // 4


FEATURES: list[tuple[str, str]] = [
    *(
        (f"{{{{ 'b' | {name} }}}}", f"the filter {name} is")
        for name in ("abs", "center", "constructor", "float", "sort")
    ),
    ("{{ x | tojson(default=1) }}", "the filter tojson with these arguments"),
    ("{{ x | unique(attribute='a') }}", "the filter unique with these arguments"),
    ("{{ x | trim('a', 'b') }}", "the filter trim with these arguments"),
    *((f"{{{{ x is {name} }}}}", f"the test {name} is") for name in ("lower", "upper", "callable", "sameas")),
    ("{{ x is defined(1) }}", "the test defined with these arguments"),
    *((f"{{{{ x.{name}() }}}}", f"the method {name} is") for name in ("format", "count", "append", "update", "zfill")),
    ("{{ x.startswith('a', 1) }}", "the method startswith with these arguments"),
    ("{{ x.split(sep='a') }}", "the method split with these arguments"),
    ("{{ x.items }}", ".items without a call"),
    ("{{ x.__class__ }}", ".__class__ without a call"),
    *((f"{{% {name} %}}", f"the tag {name.split()[0]}") for name in ("call f()", "filter upper", "do x")),
    ("{% for x in y recursive %}{% endfor %}", '"recursive"'),
    ("{{ joiner(',') }}", "the function joiner"),
    ("{{ caller() }}", "the variable caller"),
    ("{{ loop.changed(1) }}", "the method changed"),
    ("{% for x in y %}{{ loop.nothing }}{% endfor %}", "loop.nothing"),
    ("{{ 2 ** 3 }}", "**"),
    ("{{ 0x10 }}", " 0x10"),
    ("{{ f(*x) }}", "such an argument"),
    ("{{ x()() }}", "a call of a value"),
    ("{{ '\\N{DASH}' }}", "the escape \\N"),
    ("{% for x in [1] %}{{ tools }}{% endfor %}{% set tools = 1 %}", "a new value of tools"),
    ("{% set loop = 1 %}", "the variable loop"),
    ("{% break %}", "break or continue outside a loop"),
]
"""Templates with features that lopa-web lacks, and words of the errors."""
VALUES = [
    ("{{ messages[0].content.title() }}", 'another letter case of "é"'),
    ("{{ messages[0].content | int }}", 'int of "a bé"'),
    ("{{ messages[0].content.upper() }}", 'another letter case of "é"'),
    ("{{ ['\u200b'] }}", "of a text in a list"),
    ("{{ messages[0].a.b }}", ".b of this undefined"),
    ("{{ 'x'.count }}", ".count of a text"),
    ("{{ messages[0]['items'] }}", '["items"]'),
    ("{{ 'a' + 1 }}", "a text + this number"),
    ("{{ 9007199254740991 + 1 }}", "an integer above 2 ** 53"),
    ("{{ 1.5 // 1 }}", "// of a float"),
    ("{{ range(3) }}", "a text of this object"),
    ("{{ 'a' in (['a'] | map('trim')) }}", "`in` of such items"),
    ("{% set x = ['a'] | map('trim') %}{{ x | list }}{{ x | list }}", "a second use of a generator"),
    ("{{ ['a'] | map('center') | list }}", "the filter center"),
    ("{{ [1] | select('lower') | list }}", "the test lower"),
    ("{{ 1 | tojson(ensure_ascii=true) }}", "tojson with ensure_ascii"),
    ("{{ 'a'.replace('', 'b') }}", "an empty separator"),
    ("{% set ns = namespace(a=1) %}{% for x in [1] if ns.a %}{% endfor %}", "a namespace in the condition"),
    ("{{ strftime_now('%j') }}", "%j"),
    ("{{ strftime_now('2%Y') }}", "such a format of a time"),
    ("{% macro f(x) %}{% endmacro %}{{ f.name }}", ".name of this function"),
    ("{% macro f(x) %}{% endmacro %}{{ [f] | map(attribute='arguments') | list }}", ".arguments of this function"),
    ("{{ '%5s' % 'a' }}", "the format %5"),
    ("{{ raise_exception('only one turn') }}", "failed: only one turn\n"),
]
"""Templates with values that lopa-web treats otherwise, and words of the errors."""


def test_what_lopa_web_lacks_is_rejected_by_name() -> None:
    """Features are rejected where they are not reached, too."""
    chat = [{"role": "user", "content": "a bé"}]
    cases = [("{% if false %}" + template + "{% endif %}", named) for template, named in FEATURES] + VALUES
    for (template, named), found in zip(cases, answers(*((each, chat, None) for each, _ in cases)), strict=True):
        assert named in found["error"], template


@pytest.mark.parametrize("field", [{"2": 0, "1": 0}, 2**60, "\ud800"], ids=["keys", "integer", "surrogate"])
def test_messages_that_javascript_changes_are_rejected(field: Any) -> None:
    (found,) = answers(("{{ messages[0] | tojson }}", [{"role": "user", "content": "a", "x": field}], None))
    assert "failed: " in found["error"]


def test_hostile_templates_are_rejected_within_seconds() -> None:
    """A template that lopa-web renders has the text of lopa, which is bounded too."""
    chat = [{"role": "user", "content": "hi"}]
    hostile = [each for each in HOSTILE if "strftime_now" not in each]
    started = time.monotonic()
    found = answers(*((each, chat, None) for each in hostile))
    assert time.monotonic() - started < 60
    for template, answer in zip(hostile, found, strict=True):
        with suppress(BadInputError):
            assert "error" in answer or answer["text"] == RenderedChat(template, chat, TOKENS, name="t").text, template
    assert sum("too many operations" in answer.get("error", "") for answer in found) > 15


@pytest.mark.filterwarnings("ignore:invalid escape sequence")
def test_markup_is_that_of_python() -> None:
    templates = [
        *("{{ '<tool' ~ '_call>' }}", "{{ '\\u003cthink\\u003e' }}", "{{ '<thi' 'nk>' }}", "{{ '</' if x else 'a>' }}"),
        "{% for x in '<a' if '>' == x %}b{% endfor %}",
        *(RandomTemplate(seed).text for seed in range(150)),
    ]
    marks = [
        *("<tool_call>", "</tool_call>", "</think>", "a", " a b ", "ab</", "<ab>", "</ab>", "🍎", "\x1c<\x1c", "/>")
    ]
    rng = random.Random(0)
    cases: list[dict[str, Any]] = []
    for template in templates:
        own = _template_text(template)
        places = [rng.randrange(len(own)) for _ in range(40)]
        cases.append({"template": template, "marks": [*marks, *(own[at : at + rng.randrange(1, 9)] for at in places)]})
    known = 0
    for case, answer in zip(cases, text_answers(*cases), strict=True):
        for mark, is_found in zip(case["marks"], answer["marks"], strict=True):
            assert is_found in (None, is_markup(mark, case["template"])), (mark, case["template"])
            known += is_found is not None
    assert known > 3000


def test_joined_markup_stays_text_and_unclear_markup_is_rejected() -> None:
    content = json.loads((CHECKPOINT / "tokenizer.json").read_bytes())
    pattern = {**content["added_tokens"][-1], "special": False}
    content["added_tokens"] += [
        {**pattern, "id": 975 + place, "content": each} for place, each in enumerate(("<t>", "<u>"))
    ]
    backend = tokenizer_from_text(json.dumps(content).encode(), Path("t"), expected="e", remedy="r")
    given = ["a<t>", "<u>b", "</t>"]
    for template in ("{{ '<' ~ 't>' }}", "{% if x %}"):
        product = Tokenizer(backend, {"chat_template": template}, None, source="a bundle")
        _, *found = text_answers({"tokenizer": json.dumps(content), "template": template}, *given)
        for each, answer in zip(given, found, strict=True):
            if "if" in template and each != "</t>":
                assert "which may be markup" in answer["error"]
            else:
                assert answer["ids"] == product.encode(each, add_bos=False)


CONTROL: list[tuple[str, dict[str, Any], bool]] = [
    ("<eot>{{ messages[0].content }}", {"content": "a eot"}, False),
    ("{{ messages[0].content }}", {"content": "a <eot>"}, True),
    ("{{ messages[0].content.replace('[', '<').replace(']', '>') }}", {"content": "[eot]"}, True),
    ("{{ messages[0].content | replace('\\r', '') }}", {"content": "<e\rot>"}, True),
    ("{{ '<' ~ messages[0].content ~ '>' }}", {"content": "eot"}, True),
    ("{{ messages[0].content.split('|') | join }}", {"content": "<e|ot>"}, True),
    ("{{ messages[0].content[::-1] | upper }}", {"content": ">toe<"}, True),
    ("{{ messages[0] | tojson }}", {"content": "a", "x": {"<eot>": 1}}, True),
    ("{% for k in messages[0] %}{{ k }}{% endfor %}", {"content": "a", "<eot>": 1}, True),
    ("<eot>{{ messages[0].content.strip() }}<eot>", {"content": " <e"}, False),
    ("{{ '<eot>x'.replace('x', messages[0].content) | trim }}", {"content": "ot>"}, False),
]
"""Templates, messages, and whether these would have a part in a control token."""


def test_only_the_template_writes_control_tokens() -> None:
    names: dict[str, Any] = {"settings": {}, "tokens": ["<s>", "<EOT>"]}
    cases = [(template, [{"role": "user", **message}], is_rejected) for template, message, is_rejected in CONTROL]
    found = text_answers(*({"template": template, "messages": chat, **names} for template, chat, _ in cases))
    for (template, chat, is_rejected), answer in zip(cases, found, strict=True):
        if is_rejected:
            assert 'a message with the special token "<EOT>"' in answer["error"], template
        else:
            assert answer == {"text": rendered(template, chat)}


def test_content_has_parts_or_lacks_beside_calls_as_in_python() -> None:
    call: Any = {"function": {"name": "f", "arguments": {}}}
    fields: list[dict[str, Any]] = [
        *({"content": None, "tool_calls": [call]}, {"tool_calls": [call]}, {"content": None, "function_call": call}),
        *({"content": None, "tool_calls": []}, {"content": None}, {"content": None, "function_call": {}}),
        *({"content": []}, {"content": [{"type": "text", "text": each} for each in "a b"]}, {"content": ["a"]}),
        *({"content": [{"type": "image", "text": "a"}]}, {"content": [{"type": "text", "text": 1}]}),
    ]
    given = [[{"role": "user", "content": "a"}, {"role": "assistant", **each}] for each in fields]
    for chat, answer in zip(given, answers(*((STYLES["tiny"], each, None) for each in given)), strict=True):
        try:
            expected = RenderedChat(STYLES["tiny"], chat, TOKENS, name="t").text
        except BadInputError:
            assert "invalid chat" in answer["error"]
        else:
            assert answer == {"text": expected}
