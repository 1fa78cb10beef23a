"""Chat templates that try to use up memory or time, one per line. As a program it prints their outcomes.

It is a separate program, so that the test can limit its resources if a template is not rejected.
"""

import json
import resource
import time

from lopa.runtime.errors import BadInputError
from lopa.runtime.text.chat_template import RenderedChat

_DOUBLED = "{% set ns = namespace(x='ab') %}{% for i in range(99) %}{% set ns.x = ns.x ~ ns.x %}{% endfor %}{{ ns.x }}"
_SHARED = "{% set ns = namespace(x=[1]) %}{% for i in range(80) %}{% set ns.x = [ns.x, ns.x] %}{% endfor %}"
_BIG = "{% set big = 'x' * 1000000 %}"
_LONG = "{% set long = range(99999) | list %}"

HARMLESS = [
    "{{ '{0.__class__}'.format(1) }}",
    "{{ 9 ** 9 ** 9 }}",
    _BIG + "{{ big.split('x') | length }}",
    "{{ 1e308 | int }}",
    "{{ messages | map(attribute='__class__') | list | first | upper }}",
    "{{ strftime_now.__globals__ }}",
]
"""Templates that reach nothing and take little."""
TEMPLATES = [
    *HARMLESS,
    "{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}",
    "{% for i in range(99999) %}{% for j in range(99999) %}x{% endfor %}{% endfor %}",
    "{{ lipsum(n=1000000) }}",
    "{{ 'x' | center(10 ** 10) }}",
    "{{ 'x' * 10000000000 }}",
    "{{ 'x' | indent(10 ** 10) }}",
    "{{ '%10000000000d' % 1 }}",
    "{{ '{:10000000000}'.format('x') }}",
    "{{ 2 ** 10000000 }}",
    "{{ 3 ** (10 ** 9) }}",
    "{% macro m() %}{% if 0 %}" + "{{ x }}" * 2000 + "{% endif %}{% endmacro %}"
    "{% for i in range(9999) %}{{ m() }}{% endfor %}",
    "{% set ns = namespace(n=3) %}{% for i in range(9999) %}{% set ns.n = ns.n * ns.n %}{% endfor %}",
    _DOUBLED,
    _DOUBLED.replace("ns.x ~ ns.x", "'%s%s' % (ns.x, ns.x)"),
    _DOUBLED.replace("ns.x ~ ns.x", "[ns.x, ns.x] | join"),
    _DOUBLED.replace("ns.x ~ ns.x", "ns.x | replace('a', 'aa')"),
    _DOUBLED.replace("{% set ns.x = ns.x ~ ns.x %}", "{% set y %}{{ ns.x }}{{ ns.x }}{% endset %}{% set ns.x = y %}"),
    _DOUBLED.replace("'ab'", "[1]").replace("~", "+"),
    _SHARED + "{{ ns.x }}",
    _SHARED + "{{ ns.x == ns.x }}",
    "{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}",
    "{% macro m(n) %}{{ m(n + 1) }}{{ m(n + 1) }}{% endmacro %}{{ m(0) }}",
    "{% macro m(n) %}{% if n %}{{ m(n - 1) }}{{ m(n - 1) }}{% endif %}x{% endmacro %}{{ m(40) }}",
    "{{ " + "(" * 5000 + "1" + ")" * 5000 + " }}",
    "{{ x" + ".a" * 20000 + " }}",
    "{{ 1" + " + 1" * 20000 + " }}",
    "{% if 1 %}" * 2000 + "{% endif %}" * 2000,
    "{{ " + "9" * 90000 + " }}",
    "{{ '" + "x" * 200000 + "' }}",
    "{{ [1, 2] | tojson(indent=1000000000) }}",
    "{{ [1, 2] | tojson(separators=['x' * 4000000, 'y']) }}{{ [1, 2] | tojson(separators=('x' * 99999, ':')) }}",
    _BIG + "{% for i in range(99999) %}{{ big }}{% endfor %}",
    _BIG + "{% for i in range(99999) %}{% if 'y' in big %}{% endif %}{% endfor %}",
    _BIG + "{% for i in range(99999) %}{{ big.find('xxxxxxxxxxxxxxxxxxxxxxxxxy') }}{% endfor %}",
    _BIG + "{% for i in range(99999) %}{{ big | int }}{% endfor %}",
    _BIG + "{{ big.rfind('y' ~ 'x' * 500000) }}",
    _BIG + "{{ big.strip('y' * 500000) }}",
    _BIG + "{% for i in range(999) %}{{ big.find('y' ~ 'x' * 500000) }}{% endfor %}",
    _BIG + "{% for i in range(999) %}{{ ('9' * 1000000) | float }}{{ ('9' * 1000000) | int(base=16) }}{% endfor %}",
    _BIG + "{{ big | replace('x', big) }}",
    _BIG + "{{ big.startswith(['x']) }}",
    _LONG + "{% for i in long %}{{ long | sum }}{% endfor %}",
    _LONG + "{% for i in long %}{{ long[1:] | length }}{% endfor %}",
    _LONG + "{{ long | map('center', 900) | join | length }}",
    _LONG + "{{ (long | join(',')) * 999 }}",
    _LONG + "{{ dict(long | map('string') | unique | map('batch', 1)) }}",
    "{{ range(99999999999) }}",
    "{{ strftime_now('%999999999Y') }}",
    "{{ 1 | round(999999999) }}",
    "{{ cycler('a').next() }}",
    "{% include 'x' %}",
    "{% block x %}{% endblock %}",
    "{{ self }}{{ self.x() }}",
    "{{ namespace.__init__.__globals__ }}",
    "{{ ''.format.__self__.x }}",
    "{{ messages[0].items().__class__() }}",
    "{{ messages.append(1) }}",
    "{{ messages | attr('__class__') }}",
    "{{ raise_exception('x' * 4000000) }}",
    "{{ '%*d' % (10 ** 10, 1) }}",
    "{{ '{:{w}}'.format('x', w=10 ** 10) }}",
    "{{ (10).to_bytes(10 ** 10) }}",
    "{{ (-1) ** 0.5 }}",
    _SHARED.replace("[ns.x, ns.x]", "{'a': ns.x, 'b': ns.x}") + "{{ ns.x | tojson }}",
    _LONG
    + "{% for i in long %}{% for j in dict(a=long).values() %}{% for k in j %}{% endfor %}{% endfor %}{% endfor %}",
    _LONG + "{{ long | map(attribute='a.' * 40000, default=0) | list | length }}",
    _LONG + "{% macro m() %}{% endmacro %}{% for i in long %}{{ m(*long) }}{% endfor %}",
    _LONG
    + "{% macro m() %}{% if 0 %}"
    + "{{ x }}" * 999
    + "{% endif %}{% endmacro %}{% for i in long %}{{ m() }}{% endfor %}",
    _LONG + "{% macro m() %}{{ caller() }}{% endmacro %}{% for i in long %}{% call m() %}x{% endcall %}{% endfor %}",
    _LONG + "{% for i in long %}" + "x" * 9999 + "{% endfor %}",
    _BIG + "{% for i in range(9999) %}{% set y %}{{ big }}{% endset %}{% endfor %}",
    "{% for i in [[[]]] recursive %}{{ loop(i) }}{{ loop(i) }}{% endfor %}",
    "{% autoescape true %}{{ messages }}{% endautoescape %}",
    "{{ namespace(_Namespace__attrs=1) }}",
    "{{ namespace(a=1)._Namespace__attrs }}{{ namespace.mro() }}",
    "{{ self._TemplateReference__context.parent }}",
    "{{ raise_exception.__code__.co_consts[0].x }}",
]
LIMITS = {resource.RLIMIT_AS: 2 * 2**30, resource.RLIMIT_CPU: 120}


def main() -> None:
    """Print a line of JSON for each template: "refused" or the number of characters, and processor seconds."""
    for kind, max in LIMITS.items():
        resource.setrlimit(kind, (max, max))
    for template in TEMPLATES:
        started = time.process_time()
        try:
            chat = RenderedChat(template, [{"role": "user", "content": "hi"}], {}, name="the template")
            outcome: str | int = len(chat.text + str(chat.marks))
        except BadInputError as error:
            outcome = "refused" if "MemoryError" not in str(error) and len(str(error)) < 5000 else "memory"
        except BaseException as error:
            outcome = repr(error)
        seconds = time.process_time() - started
        print(json.dumps([template[:100], outcome, seconds]), flush=True)


if __name__ == "__main__":
    main()
