"""Random templates of the forms that lopa-web allows, of some that it rejects, and random values for them."""

import random
from collections.abc import Callable
from functools import partial
from typing import Any

PIECES = (
    *("a", "B", "role", "user", " ", "\n", "\n\n", "\t", "\r", "\r\n", "\x0b", "\x0c", "\x1c", "\x1f", "\x85", "\xa0"),
    *("\u2028", "é", "ß", "Σ", "İ", "中", "🍎", "\U0001f468\u200d\U0001f469", "\ufeff", "\u0301", "\x7f", "\0"),
    *("\ufdd0", "\U000e0001", "'", '"', "\\", "<b>", "&", "{{ x }}", "{%", "</think>", "-1", "12", "1.5", "inf", "٣"),
    *("<|end|>", "\uffff", "İi"),
)
ENDS = ("", "", "", "-", "+")


START = (
    "{% set ns = namespace(a=1) %}{% set m = messages[0] %}{% set c = tools[0] %}{% set y = 2 %}"
    "{% macro f(x='d', y=3) %}{{ x ~ y }}{% endmacro %}{% macro g(x, y=m) %}{{ x }}{{ y.role }}{% endmacro %}"
)


class RandomTemplate:
    """A template, made of statements and of expressions by type."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self.loops = 0
        self.name = "f"
        self.text = START + "".join(self.statement(2) for _ in range(self.rng.randrange(1, 4)))

    def pick(self, *choices: str | Callable[[], str]) -> str:
        chosen = self.rng.choice(choices)
        return chosen if isinstance(chosen, str) else chosen()

    def words(self, most: int = 3) -> str:
        return "".join(self.rng.choices(PIECES, k=self.rng.randrange(most + 1)))

    def literal(self) -> str:
        text = self.words(2)
        escaped = text.replace("\\", "\\\\").replace("'", "\\'").replace("\0", "\\x00")
        escaped = self.pick(escaped, escaped.replace("\n", "\\n").replace("é", "\\xe9").replace("中", "\\u4e2d"))
        return self.pick(f"'{escaped}'", f"'{escaped}'", "'\\d\\'\\\n'", "'a' \"b\"")

    def statement(self, depth: int, in_loop: bool = False) -> str:
        def inner() -> str:
            return "".join(self.statement(depth - 1, in_loop) for _ in range(self.rng.randrange(1, 3)))

        name = (
            self.pick("x", "y", "m", "c", "tools", "loop", "role") if self.rng.random() < 0.1 else self.pick("x", "y")
        )
        if depth <= 0:
            return self.pick(self.gap, self.output)
        kind = self.rng.randrange(14)
        if kind < 4:
            return self.gap() + self.output()
        if kind < 6:
            other = self.pick(
                "", lambda: self.tag("else") + inner(), lambda: self.tag(f"elif {self.truth(1)}") + inner()
            )
            return self.tag(f"if {self.truth(2)}") + inner() + other + self.tag("endif")
        if kind < 9:
            return self.loop(depth)
        if kind == 9:
            return self.tag(f"set {name} = {self.any(2)}") + self.pick("", lambda: "{{ " + name + " }}")
        if kind == 10:
            block = self.tag(f"set {name}") + inner() + self.tag("endset")
            field = self.tag(f"set ns.a = {self.any(1)}") + "{{ ns.a }}"
            return self.pick(block, field, self.tag(f"set x, y = {self.any(1)}"))
        if kind == 11:
            parameters = self.pick("x='c', y=1", "x, y=1", "x=2, y=x", "x=y, y=3")
            self.name = "g"  # so that no macro calls itself
            made = self.tag(f"macro f({parameters})") + inner() + self.tag("endmacro")
            self.name = "f"
            return made + "{{ " + self.call() + " }}"
        if kind == 12:
            raw = self.tag("raw") + self.pick("{{ x }}\n", " {% if %} ", "\n a\n  ") + self.tag("endraw")
            return self.pick(raw, "{#" + self.pick("", "-") + " {% x %} " + self.pick("", "-") + "#}" + self.gap())
        if in_loop:
            return (
                self.tag(f"if {self.truth(1)}") + inner() + self.tag(self.pick("break", "continue")) + self.tag("endif")
            )
        if self.rng.random() < 0.5:
            return self.tag(f"with x = {self.any(1)}, y = x") + inner() + self.tag("endwith") + "{{ x }}"
        return self.tag("generation") + inner() + self.tag("endgeneration")

    def loop(self, depth: int) -> str:
        def inner() -> str:
            self.loops += 1
            made = "".join(self.statement(depth - 1, True) for _ in range(self.rng.randrange(1, 4)))
            self.loops -= 1
            return made

        head = self.pick(
            *(
                "m in messages",
                "m in messages",
                "c in tools",
                f"x in {self.items(2)}",
                f"m in messages if {self.truth(1)}",
            ),
            *(
                f"x in {self.items(1)} if {self.truth(1)}",
                f"x, y in {self.mapping(1)}.items()",
                f"x in {self.text_(1)}",
            ),
        )
        other = self.pick("", "", lambda: self.tag("else") + self.statement(1))
        return self.tag(f"for {head}") + inner() + other + self.tag("endfor")

    def tag(self, content: str) -> str:
        return self.gap() + "{%" + self.pick(*ENDS) + f" {content} " + self.pick(*ENDS) + "%}" + self.gap()

    def output(self) -> str:
        return "{{" + self.pick("", "", "-") + f" {self.any(self.rng.randrange(4))} " + self.pick("", "", "-") + "}}"

    def gap(self) -> str:
        return self.pick(
            "", "", "", "\n", " ", "  \n ", "\xa0", "\x0c", "x", "text ", "\n\n", "\x1c ", "\r\n", "\ufeff"
        )

    def any(self, depth: int) -> str:
        kinds = (self.text_, self.text_, self.number, self.truth, self.items, self.mapping, self.other)
        return self.rng.choice(kinds)(depth)

    def other(self, depth: int) -> str:
        one, two = partial(self.any, depth - 1), partial(self.any, depth - 1)
        if depth <= 0:
            return self.pick("none", "missing", "x", "y", "m", "c", "ns.a", "ns.b", "()", "m.x", "x.role", "'a'.text")
        return self.pick(
            lambda: f"({one()} if {self.truth(1)} else {two()})",
            lambda: f"({one()} or {two()})",
            lambda: f"({one()} and {two()})",
            lambda: f"({one()} if {self.truth(1)})",
            lambda: f"{self.items(depth - 1)}[{self.pick('0', '-1', '0', '9', 'y')}]",
            lambda: f"{self.mapping(depth - 1)}[{self.text_(0)}]",
            lambda: f"{self.mapping(depth - 1)}.{self.pick('role', 'content', 'a', 'missing', 'tool_calls')}",
            lambda: f"{self.mapping(depth - 1)}.get({self.text_(0)}{self.pick('', ', 1', ', x')})",
            lambda: f"({one()}) | {self.pick('default(1)', 'default', 'd(none, true)', 'default(x, boolean=true)')}",
            lambda: f"{self.items(depth - 1)} | {self.pick('first', 'last')}",
            lambda: f"({one()}, {two()})",
            lambda: f"({self.text_(1)}) | {self.pick('safe', 'list', 'string', 'reverse', 'title', 'int', 'float')}",
            lambda: f"({self.number(1)}) | {self.pick('abs', 'int', 'string', 'tojson', 'float', 'default')}",
        )

    def text_(self, depth: int) -> str:
        text, one = partial(self.text_, depth - 1), partial(self.any, depth - 1)
        if self.rng.random() < 0.05 and depth > 0:
            return self.any(depth - 1)
        if depth <= 0 or self.rng.random() < 0.2:
            return self.pick(self.literal, self.literal, "m.role", "messages[0].content", "m['content']", "bos_token")
        number = partial(self.pick, "1", "-1", "2", "0", "-9", "9", "none")
        return self.pick(
            lambda: f"({text()} {self.pick('+', '~', '+')} {text()})",
            lambda: f"({one()} ~ {one()})",
            lambda: f"{text()} * {self.pick('2', '0', '-1', '3')}",
            lambda: f"{text()}{self.pick('.strip', '.lstrip', '.rstrip')}({self.pick('', self.literal, 'none')})",
            lambda: f"({text()}) | trim" + self.pick("", f"({self.literal()})"),
            lambda: f"{text()}[{number()}:{number()}]",
            lambda: f"{text()}[{number()}::{self.pick('2', '-1', '-2', '1')}]",
            lambda: f"{text()}[{number()}]",
            lambda: f"({one()}) | {self.pick('upper', 'lower', 'capitalize', 'title', 'string')}",
            lambda: f"{text()}.{self.pick('upper', 'lower', 'capitalize', 'title')}()",
            lambda: f"{text()}.replace({self.literal()}, {text()}{self.pick('', ', 1', ', -1')})",
            lambda: f"({one()}) | replace({text()}, {self.literal()})",
            lambda: f"{self.literal()}.join({self.text_(1)}.split({self.literal()}))",
            lambda: f"{self.items(depth - 1)} | join{self.pick('', '(x)', '(1)', self.joint)}",
            lambda: f"({one()}) | tojson{self.json_options()}",
            lambda: f"{text()} | indent{self.pick('', '(2)', '(2, true)', '(first=true)', '(blank=true)', self.joint)}",
            lambda: f"{text()}.split({self.literal()}){self.pick('[0]', '[-1]')}",
            lambda: f"{text()}.{self.pick('removeprefix', 'removesuffix')}({self.literal()})",
            lambda: f"{text()}.partition({self.literal()})[{self.pick('0', '1', '2')}]",
            lambda: f"'%s {self.pick('%s', '%d', '%%')}' % ({one()}, {one()})",
            self.call,
        )

    def joint(self) -> str:
        return f"({self.literal()})"

    def json_options(self) -> str:
        return self.pick(
            *(
                "",
                "",
                "(indent=2)",
                "(indent=0)",
                "(sort_keys=true)",
                "(ensure_ascii=false)",
                "(false, 4)",
                "(indent=none)",
            ),
            *("(separators=(',', ':'))", "(separators=['; ', '= '], indent=1, sort_keys=true)", "(ensure_ascii=true)"),
        )

    def call(self) -> str:
        one = self.any(1)
        return self.name + self.pick("()", "(1)", "('a', 2)", "(x=3)", "(m)", "(1, y='b')", f"({one})")

    def number(self, depth: int) -> str:
        number = partial(self.number, depth - 1)
        if self.rng.random() < 0.05 and depth > 0:
            return self.any(depth - 1)
        if depth <= 0 or self.rng.random() < 0.2:
            if self.loops and self.rng.random() < 0.5:
                return "loop." + self.pick("index", "index0", "revindex", "length", "depth", "revindex0")
            return self.pick(
                *("0", "1", "2", "7", "12", "9007199254740991", "1.5", "0.1", "1e3", "2.0", "1e-07", "1e16", "3.14e-5"),
            )
        return self.pick(
            lambda: f"({number()} {self.pick('+', '-', '*', '/', '//', '%')} {number()})",
            lambda: f"(-{number()})",
            lambda: f"({self.any(depth - 1)}) | {self.pick('length', 'count')}",
            lambda: f"({self.any(depth - 1)}) | int",
            lambda: f"{self.text_(depth - 1)}.{self.pick('find', 'find', 'count')}({self.literal()})",
        )

    def truth(self, depth: int) -> str:
        one, two = partial(self.any, depth - 1), partial(self.any, depth - 1)
        if depth <= 0:
            if self.loops and self.rng.random() < 0.5:
                return self.pick(
                    "loop.first", "loop.last", "loop.previtem", "loop.nextitem is defined", "loop.cycle(0, 1)"
                )
            return self.pick("true", "false", "x", "m.tool_calls", "ns.a", "tools", "not y")
        return self.pick(
            lambda: f"({one()} {self.pick('==', '!=')} {two()})",
            lambda: f"({one()} {self.pick('in', 'not in')} {self.items(depth - 1)})",
            lambda: f"({self.number(1)} {self.pick('<', '<=', '==', '!=')} {self.number(1)} < {self.number(0)})",
            lambda: f"({self.text_(1)} {self.pick('<', '<=', '==', '!=', 'in', '>')} {self.text_(1)})",
            lambda: f"{one()} is {self.pick('', 'not ')}{self.pick(*PLAIN_TESTS)}",
            lambda: f"{one()} is {self.pick('eq', 'ne', 'equalto')} {two()}",
            lambda: f"{self.number(1)} is {self.pick('eq', 'lt', 'le', 'ge', 'gt', 'divisibleby')}({self.number(1)})",
            lambda: f"{one()} is in {self.items(depth - 1)}",
            lambda: f"{self.text_(1)}.{self.pick('startswith', 'endswith')}({self.pick(self.literal, ends(self))})",
            lambda: f"not {one()}",
            lambda: f"({one()} and {two()})",
            lambda: f"m.role == {self.pick(repr('user'), repr('tool'))}",
        )

    def items(self, depth: int) -> str:
        if depth <= 0:
            return self.pick(
                "messages", "tools", "[]", "[1, 'b', none]", "['b', 'a']", "range(3)", "(1, 2)", "m.tool_calls or []"
            )
        items, test = (
            partial(self.items, depth - 1),
            self.pick("'string'", "'none'", "'eq', 1", "'defined'", "'in', ['a']"),
        )
        name = self.pick("'role'", "'content'", "'role'", "'missing'", "'a.b'", "0")
        return self.pick(
            lambda: f"[{self.any(depth - 1)}, {self.any(depth - 1)}]",
            lambda: f"{items()}[{self.pick('1:', ':-1', '::-1', '1:2', ':2')}]",
            lambda: f"({items()} | list + {items()} | list)",
            lambda: f"{self.text_(1)}.split({self.pick('', self.literal, 'none', lambda: self.literal() + ', 1')})",
            lambda: f"{self.text_(1)}.{self.pick('rsplit', 'split')}({self.literal()}{self.pick('', ', 1')})",
            lambda: f"{self.text_(1)}.splitlines()",
            lambda: f"{items()} | {self.pick('list', 'unique', 'reverse', 'select', 'reject', 'reverse | list')}",
            lambda: f"{self.text_(1)} | {self.pick('unique', 'list', 'sort')}",
            lambda: f"{self.pick('messages', items)} | map({self.pick(*MAPS)})" + self.pick("", " | list"),
            lambda: f"{items()} | {self.pick('select', 'reject')}({test})" + self.pick("", " | list"),
            lambda: (
                f"messages | {self.pick('selectattr', 'rejectattr')}({name}{self.pick('', ', ' + test)})"
                + self.pick("", " | list")
            ),
            lambda: f"{self.mapping(depth - 1)}.{self.pick('items', 'keys', 'values')}()" + self.pick("", " | list"),
            lambda: f"{self.mapping(depth - 1)} | {self.pick('items', 'list', 'dictsort')}",
            lambda: f"range({self.pick('2', '1, 4', '4, 0, -2', '0')})",
        )

    def mapping(self, depth: int) -> str:
        if depth <= 0 or self.rng.random() < 0.3:
            return self.pick(
                "m", "messages[0]", "messages[-1]", "tools[0]", "{}", "{'a': 1, 'b': [true]}", "dict(a=1, b='c')"
            )
        return "{" + f"{self.text_(0)}: {self.any(depth - 1)}, 'role': {self.any(depth - 1)}" + "}"


PLAIN_TESTS = (
    *(
        "defined",
        "undefined",
        "none",
        "string",
        "mapping",
        "iterable",
        "sequence",
        "number",
        "integer",
        "float",
        "boolean",
    ),
    *("true", "false"),
)
MAPS = (
    "attribute='role'",
    "attribute='a', default='z'",
    "'trim'",
    "'upper'",
    "'tojson'",
    "'length'",
    "'replace', 'a', 'b'",
    "'join', '-'",
)


def ends(random_: RandomTemplate) -> str:
    return f"({random_.literal()}, {random_.literal()})" + random_.pick("", "", ", 1")


def random_value(rng: random.Random, depth: int = 2) -> Any:
    """Return a value of JSON. JavaScript has no float that is a whole number."""
    words = "".join(rng.choices(PIECES, k=rng.randrange(4)))
    plain = [
        words,
        words,
        rng.randrange(-3, 99),
        None,
        True,
        False,
        rng.random() * 10.0 ** rng.randrange(-9, 12) + 1e-12,
    ]
    if depth and rng.random() < 0.5:
        size = range(rng.randrange(3))
        if rng.random() < 0.5:
            return [random_value(rng, depth - 1) for _ in size]
        names = ["a", "b", "role", "x y", "name", words]
        return {rng.choice(names): random_value(rng, depth - 1) for _ in size}
    value = rng.choice(plain)
    return 0.5 if isinstance(value, float) and value.is_integer() else value


def random_chat(rng: random.Random) -> tuple[list[dict[str, Any]], list[Any]]:
    """Return messages and tools."""
    messages: list[dict[str, Any]] = []
    for _ in range(rng.randrange(1, 4)):
        role = rng.choice(("user", "assistant", "system", "tool"))
        message: dict[str, Any] = {"role": role, "content": "".join(rng.choices(PIECES, k=rng.randrange(6)))}
        if rng.random() < 0.3:
            message["tool_calls"] = [{"function": {"name": "f", "arguments": random_value(rng)}}]
        if rng.random() < 0.2:
            message[rng.choice(("a", "name", "x"))] = random_value(rng)
        messages.append(message)
    return messages, [random_value(rng) for _ in range(rng.randrange(1, 3))]
