"""Chat templates, held against Hugging Face's own renderer where it is installed."""

from datetime import datetime

import pytest

from lopa.runtime.chat_template import text_from_messages
from lopa.runtime.errors import BadInputError

CHAT = [
    {"role": "system", "content": "Be brief."},
    {"role": "user", "content": "Grüße <b>&</b> 日本 'q'"},
    {"role": "assistant", "content": "Yes."},
    {"role": "user", "content": ""},
]
TOKENS = {"bos_token": "<|begin|>", "eos_token": "<|end|>"}
TEMPLATES = [
    """{{ bos_token }}
{%- for message in messages %}
    {%- if message['role'] == 'system' %}
        {{- '<sys>' + message.content + '</sys>\n' }}
    {%- else %}
    {{- '<|' ~ message.role ~ '|>' ~ message.content | trim ~ eos_token }}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}
{{- '<|assistant|>' }}
{%- endif %}
""",
    """{% set ns = namespace(n=0) %}
{% for message in messages %}
  {% set ns.n = ns.n + 1 %}
  {% if message.role == 'assistant' %}{% generation %}{{ message.content }}{% endgeneration %}

  {% endif %}
  {% if loop.index > 3 %}{% break %}{% endif %}
{{ ns.n }} {{ message | tojson }} {{ messages[0] | tojson(indent=2) }} [{{ pad_token }}] {{ tools is none }}
{% endfor %}""",
    "{{ messages[1].content | upper }}{{ messages | length }}{{ dict(a=1)['a'] }}",
]


def rendered(template: str) -> str:
    return text_from_messages(template, CHAT, TOKENS, source="a bundle")


@pytest.mark.parametrize("template", TEMPLATES)
def test_text_is_that_of_hugging_face(template: str) -> None:
    utils = pytest.importorskip("transformers.utils.chat_template_utils")
    found, _ = utils.render_jinja_template([CHAT], chat_template=template, add_generation_prompt=True, **TOKENS)
    assert rendered(template) == found[0]
    assert len(found[0]) > 10


def test_text_without_hugging_face() -> None:
    assert rendered(TEMPLATES[0]) == (
        "<|begin|><sys>Be brief.</sys>\n<|user|>Grüße <b>&</b> 日本 'q'<|end|>"
        "<|assistant|>Yes.<|end|><|user|><|end|><|assistant|>"
    )


def test_the_time() -> None:
    assert rendered("{{ strftime_now('%Y') }}") in {str(datetime.now().year + years) for years in (-1, 0)}


@pytest.mark.parametrize(
    ("template", "reason"),
    [
        ("{{ raise_exception('roles must alternate') }}", "roles must alternate"),
        ("{% if %}", "Expected an expression"),
        ("{{ messages[0].nothing.at.all }}", "has no attribute"),
        ("{{ 1 / 0 }}", "division by zero"),
        ("{{ messages.__class__.__mro__ }}", "unsafe"),
        ("{{ messages.append(1) }}", "unsafe|not safe"),
        ("{{ ''.__class__.__base__.__subclasses__() }}", "unsafe"),
        ("{{ range(1000000000) | list }}", "Range too big"),
        ("{% include 'tokenizer.json' %}", "no loader"),
    ],
)
def test_a_template_that_fails_or_reaches_out(template: str, reason: str) -> None:
    with pytest.raises(BadInputError, match=reason) as caught:
        rendered(template)
    assert caught.value.received.startswith("the chat template of a bundle failed: ")


@pytest.mark.parametrize(
    "messages", [[{"role": "user"}], [{"content": "x"}], [{"role": "user", "content": 3}], ["hello"], [None], "hello"]
)
def test_messages_of_another_form(messages: list[dict[str, str]]) -> None:
    with pytest.raises(BadInputError, match="message 0 of the chat"):
        text_from_messages(TEMPLATES[0], messages, TOKENS, source="a bundle")


def test_no_messages() -> None:
    with pytest.raises(BadInputError, match="without messages"):
        text_from_messages(TEMPLATES[0], [], TOKENS, source="a bundle")
