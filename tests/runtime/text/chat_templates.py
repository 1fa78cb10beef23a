# ruff: noqa: E501
"""Chat templates in the style of well-known model families, written for these tests."""

CHATML = """{% for message in messages %}
{{ '<|im_start|>' + message['role'] + '\\n' + message['content'] + '<|im_end|>' + '\\n' }}
{% endfor %}
{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"""

QWEN = """{%- if tools %}
    {{- '<|im_start|>system\\n' }}
    {%- for tool in tools %}{{- "\\n" }}{{- tool | tojson }}{%- endfor %}
    {{- '<|im_end|>\\n' }}
{%- elif messages[0].role == 'system' %}
    {{- '<|im_start|>system\\n' + messages[0].content + '<|im_end|>\\n' }}
{%- endif %}
{%- set ns = namespace(multi_step_tool=true, last_query_index=messages|length - 1) %}
{%- for message in messages[::-1] %}
    {%- set index = (messages|length - 1) - loop.index0 %}
    {%- if ns.multi_step_tool and message.role == "user" and message.content is string and not(message.content.startswith('<tool_response>') and message.content.endswith('</tool_response>')) %}
        {%- set ns.multi_step_tool = false %}
        {%- set ns.last_query_index = index %}
    {%- endif %}
{%- endfor %}
{%- for message in messages %}
    {%- if message.content is string %}{%- set content = message.content %}{%- else %}{%- set content = '' %}{%- endif %}
    {%- if (message.role == "user") or (message.role == "system" and not loop.first) %}
        {{- '<|im_start|>' + message.role + '\\n' + content + '<|im_end|>' + '\\n' }}
    {%- elif message.role == "assistant" %}
        {%- set reasoning = '' %}
        {%- if message.reasoning_content is string %}
            {%- set reasoning = message.reasoning_content %}
        {%- elif '</think>' in content %}
            {%- set reasoning = content.split('</think>')[0].rstrip('\\n').split('<think>')[-1].lstrip('\\n') %}
            {%- set content = content.split('</think>')[-1].lstrip('\\n') %}
        {%- endif %}
        {%- if loop.index0 > ns.last_query_index %}
            {{- '<|im_start|>' + message.role + '\\n<think>\\n' + reasoning.strip('\\n') + '\\n</think>\\n\\n' + content.lstrip('\\n') }}
        {%- else %}
            {{- '<|im_start|>' + message.role + '\\n' + content }}
        {%- endif %}
        {%- if message.tool_calls %}
            {%- for tool_call in message.tool_calls %}
                {%- if (loop.first and content) or (not loop.first) %}{{- '\\n' }}{%- endif %}
                {%- if tool_call.function %}{%- set tool_call = tool_call.function %}{%- endif %}
                {{- '<tool_call>\\n{"name": "' }}{{- tool_call.name }}{{- '", "arguments": ' }}
                {%- if tool_call.arguments is string %}{{- tool_call.arguments }}{%- else %}{{- tool_call.arguments | tojson }}{%- endif %}
                {{- '}\\n</tool_call>' }}
            {%- endfor %}
        {%- endif %}
        {{- '<|im_end|>\\n' }}
    {%- elif message.role == "tool" %}
        {%- if loop.first or (messages[loop.index0 - 1].role != "tool") %}{{- '<|im_start|>user' }}{%- endif %}
        {{- '\\n<tool_response>\\n' }}{{- content }}{{- '\\n</tool_response>' }}
        {%- if loop.last or (messages[loop.index0 + 1].role != "tool") %}{{- '<|im_end|>\\n' }}{%- endif %}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|im_start|>assistant\\n' }}
    {%- if enable_thinking is defined and enable_thinking is false %}{{- '<think>\\n\\n</think>\\n\\n' }}{%- endif %}
{%- endif %}"""

LLAMA = """{{- bos_token }}
{%- if custom_tools is defined %}{%- set tools = custom_tools %}{%- endif %}
{%- if not date_string is defined %}
    {%- if strftime_now is defined %}{%- set date_string = strftime_now("%B") %}{%- else %}{%- set date_string = "July" %}{%- endif %}
{%- endif %}
{%- if not tools is defined %}{%- set tools = none %}{%- endif %}
{%- if messages[0]['role'] == 'system' %}
    {%- set system_message = messages[0]['content']|trim %}
    {%- set messages = messages[1:] %}
{%- else %}
    {%- set system_message = "" %}
{%- endif %}
{{- "<|start_header_id|>system<|end_header_id|>\\n\\n" }}
{%- if tools is not none %}{{- "Environment: ipython\\n" }}{%- endif %}
{{- "Today: " + date_string + "\\n\\n" }}
{{- system_message }}
{{- "<|eot_id|>" }}
{%- for message in messages %}
    {%- if not (message.role == 'ipython' or message.role == 'tool' or 'tool_calls' in message) %}
        {{- '<|start_header_id|>' + message['role'] + '<|end_header_id|>\\n\\n'+ message['content'] | trim + '<|eot_id|>' }}
    {%- elif 'tool_calls' in message %}
        {%- if not message.tool_calls|length == 1 %}{{- raise_exception("one tool call at a time") }}{%- endif %}
        {%- set tool_call = message.tool_calls[0].function %}
        {{- '<|start_header_id|>assistant<|end_header_id|>\\n\\n' -}}
        {{- '{"name": "' + tool_call.name + '", ' }}{{- '"parameters": ' }}{{- tool_call.arguments | tojson }}{{- "}" }}{{- "<|eot_id|>" }}
    {%- elif message.role == "tool" or message.role == "ipython" %}
        {{- "<|start_header_id|>ipython<|end_header_id|>\\n\\n" }}
        {%- if message.content is mapping or message.content is iterable %}{{- message.content | tojson }}{%- else %}{{- message.content }}{%- endif %}
        {{- "<|eot_id|>" }}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}{{- '<|start_header_id|>assistant<|end_header_id|>\\n\\n' }}{%- endif %}"""


LLAMA_2 = """{% if messages[0]['role'] == 'system' %}{% set loop_messages = messages[1:] %}{% set system_message = messages[0]['content'] %}{% else %}{% set loop_messages = messages %}{% set system_message = false %}{% endif %}{% for message in loop_messages %}{% if (message['role'] == 'user') != (loop.index0 % 2 == 0) %}{{ raise_exception('Conversation roles must alternate') }}{% endif %}{% if loop.index0 == 0 and system_message != false %}{% set content = '<<SYS>>\\n' + system_message + '\\n<</SYS>>\\n\\n' + message['content'] %}{% else %}{% set content = message['content'] %}{% endif %}{% if message['role'] == 'user' %}{{ bos_token + '[INST] ' + content.strip() + ' [/INST]' }}{% elif message['role'] == 'assistant' %}{{ ' ' + content.strip() + ' ' + eos_token }}{% endif %}{% endfor %}"""

PHI = """{% for message in messages %}{% if message['role'] == 'system' and message['content'] %}{{'<|system|>\\n' + message['content'] + '<|end|>\\n'}}{% else %}{{ '<|' ~ message.role ~ '|>\\n' ~ message.content ~ '<|end|>\\n' }}{% endif %}{% endfor %}{% if add_generation_prompt %}{{ '<|assistant|>\\n' }}{% else %}{{ eos_token }}{% endif %}"""

GEMMA = """{{ bos_token }}{% if messages[0]['role'] == 'system' %}{% set first = messages[0]['content'] | trim + '\\n\\n' %}{% set rest = messages[1:] %}{% else %}{% set first = '' %}{% set rest = messages %}{% endif %}{%- for message in rest -%}
{%- if (message['role'] == 'assistant') -%}{%- set role = "model" -%}{%- else -%}{%- set role = message['role'] -%}{%- endif -%}
{{ '<start_of_turn>' + role + '\\n' + (first if loop.first else "") }}
{%- if message['content'] is string -%}{{ message['content'] | trim }}{%- elif message['content'] is iterable -%}{%- for item in message['content'] -%}{%- if item['type'] == 'text' -%}{{ item['text'] | trim }}{%- endif -%}{%- endfor -%}{%- endif -%}
{{ '<end_of_turn>\\n' }}
{%- endfor -%}
{% if add_generation_prompt %}{{'<start_of_turn>model\\n'}}{% endif %}"""

MACROS = """{%- macro render_extra(keys, skipped, level=1) -%}
{%- for key, value in keys.items() if key not in skipped %}{{ '\\n' ~ '  ' * level ~ key ~ ': ' ~ (value | tojson if value is mapping else value | string) }}{%- endfor -%}
{%- endmacro -%}
{%- macro turn(message) %}{% set body %}{{ message.content | replace('\\r', '') | indent(2) }}{% endset %}<|im_start|>{{ message.role | capitalize }}
{{ body }}{{ caller() if caller is defined else '' }}<|im_end|>{% endmacro -%}
{% for role in messages | map(attribute='role') | unique | sort %}{{ role }},{% endfor %}
{% for message in messages %}{% if loop.index > 9 %}{% break %}{% endif %}{% if not message.content %}{% continue %}{% endif %}{{ turn(message) }}{{ render_extra(message, ['content', 'role'], level=2) }}
{% else %}none{% endfor %}
{% call turn(messages[0]) %}!{% endcall %}{% filter upper %}shout {{ messages | length }}{% endfilter %}
{{ messages | rejectattr('role', 'in', ['user']) | map(attribute='content') | join(' + ') }}
{{ messages[-1].missing | default('nothing') }} {{ [1, 2, 3] | sum }} {{ 7 // 2 }} {{ 2 ** 5 }} {{ 7 / 2 }} {{ -3 | abs }} {{ ['b', 'A'] | sort | join }} {{ loop is defined }} {{ {'a': 1, 'b': [true, none]} }} {{ range(3) | list }} {{ 'x' in 'xyz' and not false }} {{ 'a-b'.split('-') | last }} {{ "it's"|title }} {{ {'b': 1, 'a': 2} | dictsort }} {{ '5' | int + 1 }} {{ 1 if messages else 2 }} {{ 1 < 2 <= 2 }}"""

GEMMA4 = """{%- macro written(value) -%}
    {%- if value is string -%}{{ '<|"|>' + value + '<|"|>' }}
    {%- elif value is boolean -%}{{ 'true' if value else 'false' }}
    {%- elif value is mapping -%}
        {{- '{' -}}{%- for key, each in value | dictsort -%}{{- '' if loop.first else ',' -}}{{- key }}:{{ written(each) }}{%- endfor -%}{{- '}' -}}
    {%- elif value is sequence -%}
        {{- '[' -}}{%- for each in value -%}{{- '' if loop.first else ',' -}}{{- written(each) -}}{%- endfor -%}{{- ']' -}}
    {%- else -%}{{ value }}{%- endif -%}
{%- endmacro -%}
{{- bos_token -}}
{%- if tools or enable_thinking is defined and enable_thinking -%}
    {{- '<|turn>system\\n' -}}
    {%- if enable_thinking is defined and enable_thinking -%}{{- '<|think|>\\n' -}}{%- endif -%}
    {%- for tool in tools or [] -%}
        {{- '<|tool>declaration:' + tool.function.name + written(tool.function) + '<tool|>' -}}
    {%- endfor -%}
    {{- '<turn|>\\n' -}}
{%- endif -%}
{%- for message in messages -%}
    {%- if message.role == 'tool' -%}
        {{- '<|tool_response>response:' + message.name | default('unknown') + '{value:' + written(message.content) + '}<tool_response|>' -}}
    {%- else -%}
        {{- '<|turn>' + ('model' if message.role == 'assistant' else message.role) + '\\n' -}}
        {%- for call in message.tool_calls or [] -%}
            {{- '<|tool_call>call:' + call.function.name + written(call.function.arguments) + '<tool_call|>' -}}
        {%- endfor -%}
        {{- message.content or '' -}}{{- '<turn|>\\n' -}}
    {%- endif -%}
{%- endfor -%}
{%- if add_generation_prompt -%}
    {{- '<|turn>model\\n' -}}
    {%- if opened is defined and opened -%}{{- '<|channel>thought\\n' -}}
    {%- elif enable_thinking is defined and not enable_thinking -%}{{- '<|channel>thought\\n<channel|>' -}}{%- endif -%}
{%- endif -%}"""

TEMPLATES = {
    "chatml": CHATML,
    "qwen": QWEN,
    "llama": LLAMA,
    "llama_2": LLAMA_2,
    "phi": PHI,
    "gemma": GEMMA,
    "gemma4": GEMMA4,
    "macros": MACROS,
}
